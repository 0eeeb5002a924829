"""The generated reference names everything that can be typed, read or met."""

import dataclasses
import importlib
import inspect
import re
import shlex
import sys

import msgspec
import pytest
import typer
from test_pages import ROOT, commands

import iobench
from iobench import formats, studies
from iobench.base import errors
from iobench.base.options import declared
from iobench.loading import loaders
from iobench.results.cases import FACETS
from iobench.results.metrics import METRICS
from iobench.results.record import Record
from iobench.terminal.cli import app
from iobench.terminal.commands._options import GROUPS

EXTENSIONS = ROOT / "docs" / "_ext"
sys.path.insert(0, str(EXTENSIONS))  # as docs/conf.py does
SOURCES = {path: path.read_text() for path in (ROOT / "iobench").rglob("*.py")}


@pytest.fixture(scope="module")
def reference():
    """Return the module that writes the reference, imported where Sphinx is not installed."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("sphinx", "docutils"):
            patch.setitem(sys.modules, name, None)
        module = importlib.import_module("iobench_reference")
        written = module.pages()
        patch.setattr(module, "pages", lambda: written)  # for all tests: to parse the package takes seconds
        yield module


@pytest.fixture(scope="module")
def pages(reference):
    return reference.pages()


COMMANDS = {
    words: one for words, one in commands(typer.main.get_command(app)) if not hasattr(one, "commands")
}


def section_of(page, name):
    """The text below the heading of a name, up to the next heading."""
    return re.search(rf"^## `{re.escape(name)}`$(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)[1]


def literals(pattern):
    """Return the matches of a pattern in the package's source."""
    return {match for text in SOURCES.values() for match in re.findall(pattern, text)}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_page_with_each_of_its_options(name, pages):
    page = pages[f"cli/{name.replace(' ', '-')}.md"]
    assert page.startswith(f"(command-{name.replace(' ', '-')})=\n# iobench {name}\n")
    for parameter in COMMANDS[name].params:
        flags = (*parameter.opts, *parameter.secondary_opts)
        for typed in flags if parameter.param_type_name == "option" else [parameter.name.upper()]:
            assert re.search(rf"^:::{{option}} .*{typed}(?![\w-])", page, re.MULTILINE)


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("README.md", [*formats.names(), *loaders.names()]),
        ("docs/explanation/formats-and-pitfalls.md", formats.names()),
        ("docs/explanation/loaders.md", loaders.names()),
    ],
)
def test_every_format_and_loader_is_introduced(page, names):
    text = (ROOT / page).read_text()
    assert [name for name in names if not re.search(rf"\b{name}\b", text)] == []


def test_the_program_has_options_of_its_own(pages, inside):
    assert "--install-completion" in inside("--help").stdout
    for flag in ("--version", "--install-completion"):
        assert f":::{{option}} {flag}" in pages["cli/index.md"]


def test_an_option_has_its_help_and_its_default(pages):
    page = pages["cli/diagnose.md"]
    options = {parameter.opts[0]: parameter for parameter in COMMANDS["diagnose"].params}
    assert options["--device"].help in page
    assert f"Default: `{options['--device'].default}`." in page
    assert "[default:" not in "".join(pages.values())


@pytest.mark.parametrize(
    ("registry", "page"), [(formats.FORMATS, "formats.md"), (loaders.LOADERS, "loaders.md")]
)
def test_every_format_and_loader_has_a_section_with_its_options(registry, page, pages):
    for name in registry.names():
        section = section_of(pages[page], name)
        for spec in declared(registry.class_of(name)):
            assert re.search(rf"^\| `{spec.name}` \| `.*` \| .+ \| .+ \|$", section, re.MULTILINE)
        assert registry.class_of(name).library in section


def test_the_formats_that_a_loader_reads(pages):
    assert "- Reads: every format\n" in section_of(pages["loaders.md"], "dataloader")
    assert "- Reads: `litdata`\n" in section_of(pages["loaders.md"], "litdata")


def test_every_metric_has_its_title_name_meaning_and_unit(pages):
    for metric in METRICS:
        _, _, rest = pages["metrics.md"].partition(f"(metric-{metric.name})=")
        section = rest.partition("\n(metric-")[0]
        assert metric.title.replace("%", "") in section.replace("\\", "").replace("%", "")
        assert f"JSON: `{metric.name}`" in section
        assert metric.meaning[:20].lower() in section.replace("\\", "").lower()
        assert "Unit in JSON: seconds" in section or metric.name != "epoch_s"


def test_every_facet_study_and_public_name_is_there(pages):
    for name in FACETS:
        assert f"| `{name}` |" in pages["facets.md"]
    for name in studies.names():
        assert studies.study_of(name).reference.author in section_of(pages["studies.md"], name)
    for name in iobench.__all__:
        assert re.search(rf":: iobench\.{name}(\(|$)", section_of(pages["python.md"], name), re.MULTILINE)
    for spec in dataclasses.fields(iobench.RunOptions):
        assert f"| `{spec.name}` |" in section_of(pages["python.md"], "RunOptions")


@pytest.mark.parametrize(
    ("cls", "page", "least"),
    [("RunWarning", "warnings.md", 15), ("CaseCheck", "warnings.md", 15), ("Advice", "advice.md", 10)],
)
def test_every_kind_of_warning_and_of_advice_has_a_section(pages, cls, page, least):
    kinds = literals(rf'{cls}\(\s*"([^"]+)"') | literals(rf'{cls}\(\s*kind="([^"]+)"')
    assert len(kinds) > least
    for kind in kinds:
        assert f"\n## `{kind}`" in pages[page]


def test_every_kind_of_error_is_there(pages):
    classes = [cls for _, cls in inspect.getmembers(errors, inspect.isclass)]
    defaults = {cls.default_kind for cls in classes if issubclass(cls, errors.IobenchError)}
    given = literals(r'raise \w+\((?:[^()]|\([^()]*\))*\bkind="([^"]+)"')
    for kind in (defaults | given) - {errors.IobenchError.default_kind}:
        assert f"`{kind}`" in pages["errors.md"]


def test_a_kind_that_is_chosen_between_two_is_found(tmp_path, monkeypatch):
    from iobench_reference import kinds

    lines = [
        "def check():",
        '    """Too slow."""',
        '    kind = "one" if x else "other"',
        '    return Advice(kind, f"it took {time} s")',
        'THIRD, FOURTH = "third", "fourth"',
        'SIGN = Advice(THIRD, "no time", hints=("give more", "wait"))',
    ]
    (tmp_path / "module.py").write_text("\n".join(lines))
    monkeypatch.setattr(kinds, "PACKAGE", tmp_path)
    found = kinds.scan({"Advice": ("kind", "message")})
    slow = kinds.Use("Advice", "Too slow.", "it took … s", "")
    assert found == {
        "one": [slow],
        "other": [slow],
        "third": [kinds.Use("Advice", "", "no time", "give more\nwait")],
    }


def test_the_schema_takes_what_a_record_is(pages):
    schema = msgspec.json.decode(pages["record.schema.json"])
    assert set(schema["properties"]) == {spec.name for spec in dataclasses.fields(Record)}
    assert schema["properties"]["case"]["$ref"] == "#/$defs/CasePart"
    for name, body in schema["$defs"].items():
        section = section_of(pages["record.md"], name)
        assert all(f"| `{field}` |" in section for field in body["properties"])


def test_comments_beside_fields_are_their_meaning(pages):
    schema = msgspec.json.decode(pages["record.schema.json"])
    assert schema["properties"]["round"]["description"] == "from 1"
    mode = schema["$defs"]["CachePart"]["properties"]["mode"]
    assert mode["description"] == "warm, cold, remote, warm object or cold object"


def test_attributes_in_a_docstring_are_the_meaning_of_fields():
    from iobench_reference import comments

    docstring = (
        "Say it.\n\nAttributes\n----------\na, b : int\n    Both, over\n    two lines.\nc\n    Alone.\n"
        "\nNotes\n-----\nMore.\n"
    )
    assert comments.attributes(docstring) == {
        "a": "Both, over two lines.",
        "b": "Both, over two lines.",
        "c": "Alone.",
    }
    assert comments.without_attributes(docstring) == "Say it.\n\nNotes\n-----\nMore.\n"


def test_special_characters_are_shown_as_they_are():
    from iobench_reference.page import prose, table

    assert prose("give --max-time N, 'iobench run' or `a|b`: x=float32[*,3]_") == (
        r"give `--max-time` N, `iobench run` or `a|b`: x=float32\[\*,3\]\_"
    )
    assert table(["a"], [["`x|y`"]]).splitlines()[-1] == r"| `x\|y` |"


def test_numpydoc_sections_are_lists():
    from iobench_reference.page import paragraphs

    assert paragraphs(
        "Say it.\n\nParameters\n----------\na : int\n    One,\n    two.\n\nNotes\n-----\nMore."
    ) == ("Say it.\n\n**Parameters**\n\n- `a` (int): One, two.\n\n**Notes**\n\nMore.")


def test_the_reference_holds_nothing_old(reference, tmp_path):
    (tmp_path / "index.md").write_text("by hand")
    (tmp_path / "cli").mkdir()
    (tmp_path / "cli" / "removed.md").write_text("a command that is no more")
    reference.write(tmp_path)
    written = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert written == {*reference.pages(), "index.md"}
    assert (tmp_path / "index.md").read_text() == "by hand"


def test_the_index_of_the_reference_lists_every_page(pages):
    index = (ROOT / "docs" / "reference" / "index.md").read_text()
    for path in pages:
        if path.endswith(".md") and not re.match(r"cli/(?!index)", path):
            assert f"]({path})" in index
            assert f"\n{path.removesuffix('.md')}\n" in index


@pytest.mark.parametrize("columns", [80, 100])
def test_help_is_not_cut_off(columns, monkeypatch, inside):
    monkeypatch.setenv("COLUMNS", str(columns))
    for arguments in ([], ["runs"]):
        shown = inside(*arguments, "--help").stdout
        assert "Commands:" in shown
        assert "..." not in shown.partition("Commands:")[2]
        assert "…" not in shown


@pytest.mark.parametrize("words", COMMANDS)
def test_the_help_of_a_command_has_an_example_that_can_be_typed(words):
    command = COMMANDS[words]
    (example,) = re.findall(r"^Example: iobench (.*)$", command.help, re.M)
    typed = shlex.split(example)
    assert typed[: len(words.split())] == words.split()
    command.make_context(words, typed[len(words.split()) :])  # raises for what is no option


def test_the_help_of_run_shows_each_option_once_and_in_a_group(inside):
    shown = inside("run", "--help").stdout
    flags = re.findall(r"^  (--[a-z0-9-]+)", shown, re.M)
    taken = {one.name: one.opts[0] for one in COMMANDS["run"].params}
    assert sorted(flags) == sorted([*taken.values(), "--help"])
    grouped = {name for names in GROUPS["run"].values() for name in names}
    assert grouped - {"help"} < set(taken)
    of_loaders = shown.partition("Options of single loaders:")[2]
    single = {flag for name, flag in taken.items() if name not in grouped}
    assert set(re.findall(r"^  (--[a-z0-9-]+)", of_loaders, re.M)) == single


def test_the_architecture_names_every_room():
    text = (ROOT / "ARCHITECTURE.md").read_text()
    for folder in (ROOT / "iobench").iterdir():
        if (folder / "__init__.py").is_file():
            assert f"`{folder.name}/`" in text
