"""A function of your own file or module as a loader: `train.py:make_loader`.

The function is called in the process of the case and returns any iterable of batches, such as a DataLoader.
Parameters of these names are filled in: `batch_size`, `order`, `shuffle`, `seed` and `device` of the case,
and `path` and `format` of the artifact if they have no default. Arguments in the loader's word take
precedence: `train.py:make_loader:num_workers=4`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from iobench.base.errors import InvalidSettings, TargetError
from iobench.base.options import word as option_word
from iobench.formats import Format
from iobench.loading import target, user_errors
from iobench.loading.inspection import is_dataloader, is_lazy, named_tensors, samples_of
from iobench.loading.loaders._loader import AHEAD, Epochs, Job, Loader
from iobench.loading.target import signature_of
from iobench.loading.tensors import HostBatch

ARTIFACT_PARAMETERS = ("path", "format")  # filled in only if required: with a default it knows its own data
CASE_PARAMETERS = ("batch_size", "order", "shuffle", "seed", "device")
MAX_SAMPLES = 2  # in multiples of the dataset's, after which an epoch that does not end is cut off


@dataclass(frozen=True)
class UserLoader(Loader):
    """The loader that a user's function returns: an iterable of batches in an order of its own.

    Attributes
    ----------
    module, function : str
        File or module, and the name of the function in it.
    arguments : tuple of (str, value)
        Arguments given in its word.
    requested : tuple of str
        Parameters that iobench fills in.
    only_format : str or None
        The only format whose artifacts it is given.
    sha256 : str
        Hash of its file: the first 16 hexadecimal digits.
    """

    name: ClassVar[str] = "target"
    summary: ClassVar[str] = "a loader of your own, built by the function that is named"
    library: ClassVar[str] = "torch"
    iterable_style: ClassVar[bool] = True
    isolated: ClassVar[bool] = True
    user_defined: ClassVar[bool] = True

    module: str
    function: str
    arguments: tuple[tuple[str, target.Value], ...]
    requested: tuple[str, ...]
    only_format: str | None
    sha256: str

    def __post_init__(self) -> None:
        """Skip the check of options: these fields are none, and `parse` checks them."""

    @property
    def display_name(self) -> str:
        """The file or module, and the function; without a module, the class of a live object."""
        return f"{self.module}:{self.function}" if self.module else self.function

    @property
    def options(self) -> dict[str, Any]:
        """The arguments in its word, and the hash of its file if that is known."""
        return {**dict(self.arguments), **({"file_sha256": self.sha256} if self.sha256 else {})}

    @property
    def variant(self) -> str:
        """The word that names it."""
        only = [("format", self.only_format)] if self.only_format else []
        text = ",".join(f"{name}={option_word(value)}" for name, value in [*only, *self.arguments])
        return self.display_name + (f":{text}" if text else "")

    @property
    def settable(self) -> tuple[str, ...]:
        """None: arguments are set in its word only."""
        return ()

    @property
    def own_data(self) -> bool:
        """True if it has no parameter for the artifact, and so reads its own data."""
        return not set(ARTIFACT_PARAMETERS) & set(self.requested)

    @property
    def workers(self) -> int:
        """One, because it may have workers."""
        return 1

    def reads(self, format: Format) -> bool:
        """Return True for every format, or only for the one in its word."""
        return self.only_format in (None, format.name, format.variant)

    def call_arguments(self, job: Job) -> dict[str, Any]:
        """Return the keyword arguments of the function."""
        order = job.order
        available = {
            "path": job.opener.path,
            "format": job.opener.format.variant,
            "batch_size": order.batch_size,
            "order": order.kind,
            "shuffle": order.kind != "sequential",
            "seed": order.seed,
            "device": job.device,
        }
        return {**{name: available[name] for name in self.requested}, **dict(self.arguments)}

    def open(self, job: Job) -> Epochs:
        """Call the function; TargetError if it fails."""
        return UserLoaderEpochs(self, job)


def parse(word: str) -> UserLoader:
    """Return the loader that a word like `train.py:make_loader:num_workers=4` names.

    Raises
    ------
    TargetError
        If there is no such function.
    InvalidSettings
        If a required argument is missing, or it has no parameter of a name that is given.
    """
    match = target.TARGET_PATTERN.fullmatch(word)
    assert match is not None  # `is_target` was True
    arguments = target.arguments_in(word)
    signature = signature_of(match["module"], match["function"])
    name = f"{match['module']}:{match['function']}"
    only = str(arguments.pop("format")) if "format" in arguments else None
    parameters = signature.parameters
    if not signature.var_keyword:
        target.check_known(name, arguments, parameters)
    requested = [one for one in ARTIFACT_PARAMETERS if one in signature.required]
    requested += [one for one in CASE_PARAMETERS if one in parameters]
    if missing := [one for one in signature.required if one not in arguments and one not in requested]:
        raise InvalidSettings(
            f"{name} needs {', '.join(missing)}",
            kind="missing-argument",
            hint=f"give it, as in {name}:{missing[0]}=VALUE "
            f"(iobench itself fills in {', '.join((*ARTIFACT_PARAMETERS, *CASE_PARAMETERS))})",
        )
    free = tuple(one for one in requested if one not in arguments)
    given = tuple(arguments.items())
    return UserLoader(match["module"], match["function"], given, free, only, signature.sha256)


class UserLoaderEpochs(Epochs):
    """Iterates over the function's result once per epoch; calls it again for each epoch of a generator."""

    def __init__(self, loader: UserLoader, job: Job) -> None:
        super().__init__(loader, job)
        self._name = loader.display_name
        self._arguments = loader.call_arguments(job)
        self._function = target.import_once(loader.module, loader.function)
        self._loader: Iterable[Any] | None = self._build()

    def _build(self) -> Iterable[Any]:
        try:
            return target.build_loader(self._function, self._name, self._arguments)
        except TargetError as error:
            raise error.changed(problem=_located(error.problem, error.__cause__)) from error

    @property
    def prefetches(self) -> bool:
        """True: unknown, so time in ``next()`` counts as waiting."""
        return True

    @property
    def read_ahead(self) -> int:
        """The batches that the workers of a DataLoader read ahead; of another loader unknown."""
        if not is_dataloader(self._loader):
            return super().read_ahead
        loader: Any = self._loader
        return max(1, int(loader.num_workers)) * int(loader.prefetch_factor or AHEAD)

    def _epoch(self, request: int) -> Iterator[HostBatch]:
        schema, samples, copied = self.opener.schema, 0, None
        for batch in self._batches():
            tensors = named_tensors(batch, schema)
            if copied is None:  # batches of one epoch are all alike
                copied = any(map(is_lazy, tensors.values()))
            # a view of a mapped file has read nothing, and without a training step nothing ever would
            yield {name: one.clone() for name, one in tensors.items()} if copied else tensors
            samples += samples_of(tensors)
            if samples >= MAX_SAMPLES * schema.samples:
                return

    def _batches(self) -> Iterator[Any]:
        loader, self._loader = self._loader or self._build(), None
        try:
            iterator = iter(loader)
            if iterator is not loader:
                self._loader = loader
            yield from iterator
        except TargetError:
            raise
        except user_errors.USER_ERRORS as error:
            problem = _located(f"{self._name} {user_errors.outcome(error)}", error)
            raise user_errors.target_error(problem, error) from error

    def close(self) -> None:
        """Release the function's result, and with it its workers."""
        self._loader = None


def _located(problem: str, error: BaseException | None) -> str:
    """Return a problem with the line of the user's code that caused it, if that is known."""
    location = user_errors.location(error) if error else ""
    return f"{problem} ({location})" if location else problem
