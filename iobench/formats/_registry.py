"""Which formats, or loaders, there are: modules of ours, and what other packages offer.

A package offers one by an entry point: its name is the word for it, its value the class.

    [project.entry-points."iobench.formats"]
    rawbin = "my_package.module:RawBin"
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import pkgutil
import re
import sys
import typing
from dataclasses import asdict
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from iobench.base.errors import (
    BrokenPlugin,
    IobenchError,
    MissingDependency,
)
from iobench.base.text import reason
from iobench.formats._options import Option, Options, build, declared, read_word, word

T = TypeVar("T", bound=Options)

_NAME = re.compile(r"[a-z][a-z0-9_-]*")


class Registry(Generic[T]):
    """The classes of one kind by their names; a class is imported when it is asked for, not before.

    `package` holds our own: each of its modules whose name has no leading underscore is one.
    `group` is the entry points' name for those of other packages. `unknown` is raised for other names.
    """

    def __init__(self, base: type[T], package: str, group: str, unknown: type[Exception]) -> None:
        self._base, self._package, self._group, self._unknown = base, package, group, unknown

    def names(self) -> list[str]:
        """Every name, ours and other packages', sorted; nothing is imported."""
        return sorted({*self._own(), *self._offered()})

    def type_of(self, name: str) -> type[T]:
        """The class of that name, imported now.

        MissingDependency where its library is not installed, BrokenPlugin where a package's class
        cannot be used or the name is offered twice.
        """
        found = self.class_of(name)
        _require(found)
        return found

    def class_of(self, name: str) -> type[T]:
        """The class of that name with what it declares, whether or not what it needs is installed."""
        ours, offers = name in self._own(), self._offered().get(name, ())
        if ours + len(offers) > 1:
            raise BrokenPlugin(self._clash(name, ours, offers))
        if offers:
            return self._load(offers[0])
        if not ours:
            kind = self._base.kind
            several = f" (give each a --{kind} of its own)" if "," in name else ""
            raise self._unknown(f"unknown {kind} {name!r}{several}; known: {', '.join(self.names())}")
        return self._import(name)

    def get(self, name: str, **options: Any) -> T:
        """The one of that name with these options; InvalidOption names what it does not have."""
        return build(self.type_of(name), options)

    def parse(self, variant: str) -> T:
        """The one written as a word: `hdf5`, `hdf5:compression=gzip,chunk_bytes=0`."""
        return read_word(self.type_of(variant.partition(":")[0]), variant)

    def describe(self) -> list[dict[str, Any]]:
        """Name, summary, usability here (`yes`, or why not) and options of every one, as plain data."""
        return [self._description(name) for name in self.names()]

    def _description(self, name: str) -> dict[str, Any]:
        try:
            cls = self.class_of(name)
        except IobenchError as error:
            return {"name": name, "summary": "", "usable": str(error), "options": []}
        try:
            _require(cls)
            usable = "yes"
        except MissingDependency as error:
            usable = str(error)
        options = [_plain(spec) for spec in declared(cls)]
        return {"name": name, "summary": cls.summary, "usable": usable, "options": options}

    def _own(self) -> list[str]:
        path = sys.modules[self._package].__path__
        return [m.name for m in pkgutil.iter_modules(path) if not m.name.startswith("_")]

    def _offered(self) -> dict[str, tuple[EntryPoint, ...]]:
        return _offers(self._group, tuple(sys.path))

    def _import(self, name: str) -> type[T]:
        try:
            module = importlib.import_module(f"{self._package}.{name}")
        except ImportError as error:
            missing = (error.name or "its library").partition(".")[0]
            raise MissingDependency(
                f"{self._base.kind} {name} needs {missing}, which is not installed: pip install {missing}"
            ) from error
        for value in vars(module).values():
            if isinstance(value, type) and vars(value).get("name") == name:
                return value
        raise BrokenPlugin(
            f"{self._base.kind} {name}: {module.__name__} has no class whose `name` is {name!r}"
        )

    def _load(self, offer: EntryPoint) -> type[T]:
        what = f"{self._base.kind} {offer.name} of {_origin(offer)} cannot be used"
        try:
            found = offer.load()
            wrong = self._wrong(offer.name, found)
        except ModuleNotFoundError as error:
            raise MissingDependency(f"{what}: {error.name} is not installed") from error
        except Exception as error:  # another package's code may fail in any way
            said = reason(error)
            raise BrokenPlugin(f"{what}: {type(error).__name__}: {said}") from error
        if wrong:
            raise BrokenPlugin(f"{what}: {wrong}")
        return typing.cast("type[T]", found)

    def _wrong(self, name: str, found: Any) -> str | None:
        """What keeps another package's object from being used, if anything."""
        if not (isinstance(found, type) and issubclass(found, self._base)):
            return f"it is no class under {self._base.__module__.partition('._')[0]}.{self._base.__name__}"
        if missing := [known for known in typing.get_type_hints(self._base) if not hasattr(found, known)]:
            return f"it lacks {', '.join(missing)}"
        if found.name != name or not _NAME.fullmatch(name):
            return f"it calls itself {found.name}; both names must be one, of a-z, digits, _ and -"
        if undone := getattr(found, "__abstractmethods__", None):
            return f"it lacks {', '.join(sorted(undone))}"
        declared(found)  # TypeError where a field is no option
        return None

    def _clash(self, name: str, ours: bool, offers: tuple[EntryPoint, ...]) -> str:
        origins = [*(["iobench itself"] if ours else []), *map(_origin, offers)]
        return (
            f"{self._base.kind} {name} is offered by {' and by '.join(origins)}, so the name says "
            "nothing: uninstall all but one, or have the package choose another name"
        )


@functools.lru_cache(maxsize=8)
def _offers(group: str, path: tuple[str, ...]) -> dict[str, tuple[EntryPoint, ...]]:
    """The entry points of a group by name; found once for each sys.path, as that takes milliseconds."""
    found: dict[str, tuple[EntryPoint, ...]] = {}
    for offer in entry_points(group=group):
        found[offer.name] = (*found.get(offer.name, ()), offer)
    return found


def _require(cls: type[Options]) -> None:
    """MissingDependency where a module that a class needs is not installed; nothing is imported."""
    package = f"'iobench[{cls.extra}]'" if cls.extra else ""
    for module in cls.modules:
        if not _there(module):
            lacks = f"{cls.kind} {cls.name} needs {module}, which is not installed"
            raise MissingDependency(f"{lacks}: pip install {package or module}")


def _there(module: str) -> bool:
    """Whether a module can be imported; a folder of its name on the way is none."""
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:  # what it is in
        return False
    return spec is not None and spec.origin is not None


def _origin(offer: EntryPoint) -> str:
    package = offer.dist.name if offer.dist else "a package"
    return f"{package} ({offer.value})"


def _plain(spec: Option) -> dict[str, Any]:
    choices = None if spec.choices is None else [_shown(choice) for choice in spec.choices]
    return asdict(spec) | {
        "type": spec.type.__name__,
        "default": _shown(spec.default),
        "choices": choices,
    }


def _shown(value: Any) -> Any:
    return word(value) if value is None or isinstance(value, bool) else value
