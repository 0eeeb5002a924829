"""Registry of formats or loaders by name, filled from an entry point group.

A package adds one through an entry point, as iobench does for its own. The entry point's name is the name on
the command line, its value is the class.

    [project.entry-points."iobench.formats"]
    rawbin = "my_package.module:RawBin"
"""

from __future__ import annotations

import functools
import importlib.util
import re
import sys
import typing
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import EntryPoint, entry_points, metadata
from typing import Any, Generic, TypeVar

from iobench.base.errors import BrokenPlugin, IobenchError, MissingDependency
from iobench.base.options import Options, build, declared, read_word, word
from iobench.base.text import reason, suggestion

T = TypeVar("T", bound=Options)

_NAME = re.compile(r"[a-z][a-z0-9_-]*")


class Registry(Generic[T]):
    """The classes of one kind by name; a class is imported only when it is requested.

    Parameters
    ----------
    base : type
        Base class of all members.
    group : str
        Entry point group of the members.
    unknown : type of IobenchError
        Error for unknown names; its kind is ``unknown-format`` or ``unknown-loader``.
    usual : mapping of str to str
        Other words for a member, separated by spaces, by its name.
    """

    def __init__(
        self, base: type[T], group: str, unknown: type[IobenchError], usual: Mapping[str, str]
    ) -> None:
        self._base, self._group, self._unknown, self._usual = base, group, unknown, usual

    def names(self) -> list[str]:
        """Return all names, sorted; imports nothing."""
        return sorted(self._offered())

    def meant(self, word: str) -> str | None:
        """Return the name that a word, such as a file's suffix, usually stands for; None without one."""
        return next((name for name in self.names() if word in self._usual.get(name, "").split()), None)

    def type_of(self, name: str) -> type[T]:
        """Import and return the class of that name.

        Raises
        ------
        MissingDependency
            Its library is not installed.
        BrokenPlugin
            The class cannot be used, or several packages offer the name.
        """
        cls = self.class_of(name)
        _require(cls)
        return cls

    def class_of(self, name: str) -> type[T]:
        """Import and return the class of that name, even if a library that it needs is missing."""
        offers, kind = self._offered().get(name, ()), self._base.kind
        if len(offers) > 1:
            raise BrokenPlugin(
                f"several packages offer {kind} {name}",
                kind="ambiguous-name",
                found=" and ".join(map(_origin, offers)),
                hint="uninstall all but one",
            )
        if offers:
            return self._load(offers[0])
        if "," in name:
            several = (f"--{kind} {one}" for one in name.split(","))
            hint = f"repeat the option to give several: {' '.join(several)}"
        else:
            word, known = name.partition(":")[0].lower(), self.names()
            hint = f"{suggestion(self.meant(word) or word, known)}known: {', '.join(known)}"
        raise self._unknown(f"unknown {kind} {name!r}", kind=f"unknown-{kind}", hint=hint)

    def get(self, name: str, **options: Any) -> T:
        """Return the member of that name with these options; InvalidOption for an unknown option."""
        return _with_modules(build(self.type_of(name), options))

    def parse(self, variant: str) -> T:
        """Return the member that a variant denotes: `hdf5`, `hdf5:compression=gzip,chunk_bytes=0`."""
        return _with_modules(read_word(self.type_of(variant.partition(":")[0]), variant))

    def describe(self) -> list[dict[str, Any]]:
        """Return name, summary, usability (`yes` or the reason) and options of all members as plain data."""
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
        options = [
            asdict(spec)
            | {
                "type": spec.type.__name__,
                "default": _shown(spec.default),
                "choices": spec.choices and list(map(_shown, spec.choices)),
            }
            for spec in declared(cls)
        ]
        return {"name": name, "summary": cls.summary, "usable": usable, "options": options}

    @functools.cached_property  # a class is requested for every variant, and evaluating type hints is slow
    def _attributes(self) -> tuple[str, ...]:
        return tuple(typing.get_type_hints(self._base))

    def _offered(self) -> dict[str, tuple[EntryPoint, ...]]:
        return _offers(self._group, tuple(sys.path))

    def _load(self, offer: EntryPoint) -> type[T]:
        what = f"{self._base.kind} {offer.name} of {_origin(offer)}"
        try:
            cls = offer.load()
            wrong = self._wrong(offer.name, cls)
        except ModuleNotFoundError as error:
            missing = str(error.name).partition(".")[0]
            raise _not_installed(what, missing, missing if missing in _required(offer) else None) from error
        except Exception as error:  # another package's code may raise anything
            if isinstance(error.__cause__, KeyboardInterrupt):  # Python 3.11 wraps it while a class is made
                raise error.__cause__ from None
            raise BrokenPlugin(
                f"{what} cannot be used", found=f"{type(error).__name__}: {reason(error)}"
            ) from error
        if wrong:
            kind, expected, found = wrong
            raise BrokenPlugin(f"{what} cannot be used", kind=kind, expected=expected, found=found)
        return typing.cast("type[T]", cls)

    def _wrong(self, name: str, cls: Any) -> tuple[str, str, str] | None:
        """Return kind, expected and found for an object that cannot be used; None if it can."""
        if not (isinstance(cls, type) and issubclass(cls, self._base)):
            base = f"{self._base.__module__.rpartition('.')[0]}.{self._base.__name__}"
            return "not-a-subclass", f"a subclass of {base}", repr(cls)
        if missing := [known for known in self._attributes if not hasattr(cls, known)]:
            return "incomplete-class", f"the attributes {', '.join(missing)}", "none"
        if cls.name != name or not _NAME.fullmatch(name):
            expected = f"the name {name!r} in the class and the entry point, of a-z, digits, _ and -"
            return "wrong-name", expected, repr(cls.name)
        if undone := getattr(cls, "__abstractmethods__", None):
            return "incomplete-class", f"the methods {', '.join(sorted(undone))}", "none"
        declared(cls)  # TypeError if a dataclass field is not an option
        return None


@functools.lru_cache(maxsize=8)
def _offers(group: str, path: tuple[str, ...]) -> dict[str, tuple[EntryPoint, ...]]:
    """Return the entry points of a group by name; cached per sys.path, because a scan takes milliseconds."""
    offers: dict[str, tuple[EntryPoint, ...]] = {}
    for offer in entry_points(group=group):
        offers[offer.name] = (*offers.get(offer.name, ()), offer)
    if not offers:
        raise MissingDependency(
            f"no entry points {group}: iobench is not installed, or an older one is", hint="pip install -e ."
        )
    return offers


def _require(cls: type[Options]) -> None:
    """Raise MissingDependency if a module that a class needs is not installed; imports nothing."""
    for module in cls.modules:
        if not is_installed(module):
            package = f"'iobench[{extra}]'" if (extra := extra_of(cls)) else module
            raise _not_installed(f"{cls.kind} {cls.name}", module, package)


def extra_of(cls: type[Options]) -> str | None:
    """Return the extra of iobench that installs a class's modules, that of its name; None without one."""
    extras = metadata("iobench").get_all("Provides-Extra") or ()
    return cls.name if cls.modules and cls.name.replace("_", "-") in extras else None


def _with_modules(member: T) -> T:
    """Return a member; MissingDependency if a module that its options need is not installed."""
    for module, extra in member.option_modules.items():
        if not is_installed(module):
            raise _not_installed(f"{member.kind} {member.variant}", module, f"'iobench[{extra}]'")
    return member


def _not_installed(what: str, module: str, package: str | None) -> MissingDependency:
    """Return the error for a missing module; `package` is the argument of pip, None if unknown."""
    hint = None if package is None else f"pip install {package}"
    return MissingDependency(f"{what} needs {module}, which is not installed", hint=hint)


def is_installed(module: str) -> bool:
    """Return True if a module can be imported; a plain folder of its name on the path does not count."""
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:  # its parent package
        return False
    return spec is not None and spec.origin is not None


def _required(offer: EntryPoint) -> set[str]:
    requirements = (offer.dist and offer.dist.requires) or ()
    return {re.split(r"[^\w.-]", requirement)[0] for requirement in requirements}


@functools.cache  # reading a package's metadata takes milliseconds
def _origin(offer: EntryPoint) -> str:
    package = offer.dist.name if offer.dist else "a package"
    return f"{package} ({offer.value})"


def _shown(value: Any) -> Any:
    return word(value) if value is None or isinstance(value, bool) else value
