"""Other packages as pip would install them, in a temporary folder."""

import shutil
import tomllib
from pathlib import Path

PACKAGE = Path(__file__).parent / "package"


def installed(folder):
    """Install the example package into a folder and return it; for sys.path."""
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    for module in PACKAGE.glob("iobench_*.py"):
        shutil.copy(module, folder)
    return made(folder, project["name"], project["entry-points"])


def made(folder, name, groups, **modules):
    """Make a package of that name in a folder and return it: entry points by group, sources by module."""
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
