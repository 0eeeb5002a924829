"""Options of run, recommend and prepare are declared once, and reach commands, plans and cases from there."""

import dataclasses

import pytest
import typer
from kinds import complaint_kind, kind

from iobench.advise.requirements import Requirements
from iobench.base.errors import InvalidSettings
from iobench.bench.case import Case
from iobench.bench.case_grid import cases_of
from iobench.bench.options import RunOptions, declared
from iobench.terminal.cli import app
from iobench.terminal.commands._declared_options import OPTIONS, made_of, parse, parse_loader_options
from iobench.terminal.commands.prepare import SourceOptions

COMMANDS = typer.main.get_command(app).commands
PARAMETERS = {one.name: one for one in COMMANDS["run"].params}
OTHERS = {"order": ("block",), "cache": ("cold",), "model": ("mlp",), "block_bytes": (4096,)}
FACETS = {spec.name for spec in dataclasses.fields(Case)} - {"loader", "device"}


def other_value(spec):
    """Return a value of a declared option other than its default."""
    if spec.name in OTHERS:
        return OTHERS[spec.name]
    (default,) = spec.default if spec.is_tuple else (spec.default,)
    value = not default if spec.type is bool else (default or 0) + 1
    return (value,) if spec.is_tuple else value


@pytest.mark.parametrize(
    ("command", "cls", "others"),
    [
        ("run", RunOptions, {"loader_options"}),
        ("recommend", Requirements, {"measured_ms"}),
        ("prepare", SourceOptions, set()),
    ],
)
def test_every_field_is_an_option_of_the_command(command, cls, others):
    assert {spec.name for spec in declared(cls)} == {spec.name for spec in dataclasses.fields(cls)} - others
    parameters = {one.name: one for one in COMMANDS[command].params}
    for spec in declared(cls):
        assert parameters[spec.parameter].opts == [spec.flag]
        assert parameters[spec.parameter].help == spec.help


def test_without_options_the_command_has_the_defaults():
    own = ("ranks", "ray", "ranks_per_host", "min_difference", "data_dir", "name", "plan", "save_plan")
    others = {*own, "resume", "long", "wide", "as_json", "out"}
    typed = {name: one.default for name, one in PARAMETERS.items() if name not in others}
    assert parse(typed) == RunOptions()


def typed_requirements(**given):
    defaults = {one.name: one.default for one in COMMANDS["recommend"].params}
    return made_of(Requirements, {**defaults, **given})


@pytest.mark.parametrize("option", ["columns", "on_error"])
def test_unknown_words_of_a_source_are_refused(option):
    with pytest.raises(InvalidSettings, check=kind("unknown-choice")):
        SourceOptions(**{"source": "a.csv", option: "other"})


def test_requirements_are_typed_as_options_of_a_run_are():
    assert typed_requirements() == Requirements(batch_size=(256,))
    assert typed_requirements(batch_size=["64, 16"]).batch_size == (64, 16)
    assert typed_requirements(full_size="2MiB").full_bytes == 2 << 20
    assert typed_requirements(max_disk="1GiB").max_disk_bytes == 1 << 30
    assert typed_requirements(format=["npy"]).formats == ("npy",)


TYPED = {
    "batch_size": (["32, 64,32", "16"], (32, 64, 16)),
    "window_size": (["1MiB,1024"], (1 << 20, 1024)),
    "step_ms": (["0.5,2"], (0.5, 2.0)),
    "cache": (["warm", "cold"], ("warm", "cold")),
    "format": (["npy", "hdf5:a=1,b=2"], ("npy", "hdf5:a=1,b=2")),
    "seed": (7, 7),
    "isolate": (False, False),
}


@pytest.mark.parametrize("name", TYPED)
def test_what_is_typed_is_parsed_by_its_type(name):
    text, value = TYPED[name]
    defaults = {one: PARAMETERS[one].default for one in OPTIONS}
    options = parse({**defaults, "order": ["block"], name: text})
    assert getattr(options, OPTIONS[name].name) == value


def test_options_of_loaders_are_typed_once_or_several_times():
    typed = {"num_workers": ["0,2", "1"], "threads": None, "in_flight": []}
    assert parse_loader_options(typed) == {"num_workers": (0, 2, 1)}


@pytest.mark.parametrize(
    ("name", "text", "flag"),
    [
        ("batch_size", ["a"], "--batch-size"),
        ("block_size", ["1Mi"], "--block-size"),
        ("step_ms", [""], "--step-ms"),
    ],
)
def test_what_cannot_be_parsed_names_the_option(name, text, flag):
    defaults = {one: PARAMETERS[one].default for one in OPTIONS}
    with pytest.raises(InvalidSettings, match=flag):
        parse({**defaults, name: text})


@pytest.mark.parametrize("spec", [one for one in declared(RunOptions) if one.choices or one.limits])
def test_values_are_checked_against_the_declaration(spec):
    bad = "other" if spec.choices else spec.limits[0] - 1
    with pytest.raises(InvalidSettings, check=kind("unknown-choice" if spec.choices else "out-of-range")):
        RunOptions(**{spec.name: (bad,) if spec.is_tuple else bad})


@pytest.mark.parametrize(
    "spec",
    # these are for samples that differ in length, or for object stores: see their tests
    [one for one in declared(RunOptions) if one.name in FACETS - {"collate", "batch_tokens", "object_cache"}],
)
def test_an_option_that_a_case_has_too_is_its_facet(images, spec):
    value, order = other_value(spec), ("block",)
    options = RunOptions(**{"format": ("npy",), "loader": ("native",), "order": order, spec.name: value})
    (case,) = cases_of(images, options, ["cpu"])
    assert getattr(case, spec.name) == (value[0] if spec.is_tuple else value)
    assert case.facets[spec.name] == getattr(case, spec.name)


@pytest.mark.parametrize("name", [*OPTIONS, "num_workers", "direct"])
@pytest.mark.parametrize("option", ["--plan", "--resume"])
def test_a_plan_and_a_resumed_run_exclude_every_option(inside, name, option):
    if (option, name) == ("--plan", "max_time"):
        return  # --max-time replaces that of a plan
    flag = PARAMETERS[name].opts[0]
    done = inside("run", option, "some", flag, *([] if PARAMETERS[name].is_flag else ["1"]))
    assert complaint_kind(done, 2) == "conflicting-options"
    assert flag in done.stderr
