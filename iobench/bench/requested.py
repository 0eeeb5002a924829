"""Formats and loaders that a run asks for."""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from iobench import formats
from iobench.base.errors import InvalidOption, InvalidSettings
from iobench.bench.options import RunOptions
from iobench.dataset.manifest import Manifest, missing_libraries
from iobench.loading import loaders
from iobench.loading.loaders import Loader


def requested_variants(manifest: Manifest, words: Sequence[str]) -> list[str]:
    """Return the variants of a dataset, those that are named or all that can be read here."""
    every, missing = list(manifest.artifacts), missing_libraries(manifest)
    if "all" in words and every and len(missing) == len(every):
        raise next(iter(missing.values()))
    usable = [variant for variant in every if variant not in missing]
    named = usable if "all" in words else [formats.parse(word).variant for word in words]
    for variant in named:
        if variant not in every:
            manifest.opener(variant)  # raises the error for an artifact that is missing
    return list(dict.fromkeys(named))


def requested_loaders(options: RunOptions) -> Iterator[Loader]:
    """Yield every requested loader with each combination of the plain options that it has."""
    named = [(word, loaders.parse(word)) for word in requested_words(options)[0]]
    if not named:
        raise InvalidSettings(
            "no loader was named", kind="no-loaders", expected=f"{', '.join(loaders.names())} or all"
        )
    for name in options.loader_options:
        if not any(name in loader.settable for _, loader in named):
            raise InvalidSettings(
                f"{', '.join(dict.fromkeys(loader.display_name for _, loader in named))}: no option {name}",
                kind="unknown-option",
                hint="'iobench loaders' lists the options of each loader",
            )
    for word, loader in named:
        given = {pair.partition("=")[0] for pair in word.partition(":")[2].split(",")}
        valid, problems = _grid(loader, _options_of(loader, options, given))
        if not valid:
            raise problems[0]
        yield from valid
        tuned = loader.recommended_variant() if options.recommended_options and word == loader.name else None
        if tuned is not None:
            yield loaders.parse(tuned)


def requested_words(options: RunOptions) -> tuple[list[str], list[str]]:
    """Return the requested loaders, each once, and why loaders of `all` cannot be used here."""
    if "all" not in options.loader:
        return list(dict.fromkeys(options.loader)), []
    known = {one["name"]: one["usable"] for one in loaders.describe()}
    named = [word for word in options.loader if word != "all"]
    words = [*named, *(name for name, usable in known.items() if usable == "yes" and name not in named)]
    return words, [usable for usable in known.values() if usable != "yes"]


def invalid_options(loader: Loader, options: RunOptions) -> list[InvalidOption | InvalidSettings]:
    """Return an error for each invalid combination of the plain options that a loader has."""
    return _grid(loader, _options_of(loader, options))[1]


def _options_of(
    loader: Loader, options: RunOptions, given: Container[str] = ()
) -> dict[str, tuple[Any, ...]]:
    """Return the plain options that a loader has, without those given in its word."""
    values = options.loader_options.items()
    return {name: value for name, value in values if name in loader.settable and name not in given}


def _grid(
    loader: Loader, values: Mapping[str, Sequence[Any]]
) -> tuple[list[Loader], list[InvalidOption | InvalidSettings]]:
    """Return the loader with each valid combination of values, and the errors of the others."""
    valid, problems = [], list[InvalidOption | InvalidSettings]()
    for combination in itertools.product(*values.values()):
        try:
            valid.append(replace(loader, **dict(zip(values, combination, strict=True))))
        except (InvalidOption, InvalidSettings) as error:
            problems.append(error)
    return valid, problems
