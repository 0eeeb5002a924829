"""Other packages as pip would have installed them, in a folder made for a test."""

import configparser
import shutil
from pathlib import Path

PACKAGE = Path(__file__).parent / "package"


def installed(folder):
    """The folder, with the example package installed into it; to be put on sys.path."""
    project = configparser.ConfigParser()
    project.read(PACKAGE / "pyproject.toml")
    groups = {
        section.split('"')[1]: {name: value.strip('"') for name, value in project[section].items()}
        for section in project.sections()
        if section.startswith("project.entry-points")
    }
    for module in PACKAGE.glob("iobench_*.py"):
        shutil.copy(module, folder)
    return made(folder, project["project"]["name"].strip('"'), groups)


def made(folder, name, groups, **modules):
    """The folder, with a package of that name: its entry points by group, its modules' source by name."""
    information = folder / f"{name.replace('-', '_')}-0.1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
    lines = []
    for group, entries in groups.items():
        lines += [f"[{group}]", *(f"{entry} = {value}" for entry, value in entries.items())]
    (information / "entry_points.txt").write_text("\n".join(lines) + "\n")
    for module, source in modules.items():
        (folder / f"{module}.py").write_text(source)
    return folder
