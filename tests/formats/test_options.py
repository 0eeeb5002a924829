"""Options of formats and loaders: declared once, written in one word, refused in one line."""

from dataclasses import dataclass, field
from typing import ClassVar

import pytest

from iobench.base.errors import (
    InvalidOption,
)
from iobench.formats import Options, build, declared, option, read_word


@dataclass(frozen=True)
class Feeder(Options):
    """An option of each kind."""

    kind: ClassVar[str] = "loader"
    name: ClassVar[str] = "feeder"
    summary: ClassVar[str] = "feeds"

    workers: int = option(0, "processes", minimum=0, maximum=64)
    share: float = option(0.5, "of memory", minimum=0, maximum=1)
    timeout: float | None = option(None, "to wait", minimum=0.1, unit="seconds")
    pin: bool | None = option(None, "page-locked memory")
    shuffle: bool = option(False, "in random order")
    threads: int | None = option(None, "of its own", minimum=1)
    fetch: str = option("sample", "what a call asks for", choices=("sample", "batch"))
    label: str = option("x", "any word")


@pytest.mark.parametrize(
    ("word", "canonical"),
    [
        ("feeder", "feeder"),
        ("feeder:", "feeder"),
        ("feeder:workers=0", "feeder"),
        ("feeder:fetch=batch,workers=4", "feeder:workers=4,fetch=batch"),
        ("feeder:share=1", "feeder:share=1"),
        ("feeder:share=1.0", "feeder:share=1"),
        ("feeder:share=.25,timeout=2.5", "feeder:share=0.25,timeout=2.5"),
        ("feeder:pin=true,shuffle=yes", "feeder:pin=yes,shuffle=yes"),
        ("feeder:pin=no,shuffle=false", "feeder:pin=no"),
        ("feeder:pin=none,threads=none,timeout=none", "feeder"),
        ("feeder:threads=3,label=a-b_1.c", "feeder:threads=3,label=a-b_1.c"),
        ("feeder:label=none", "feeder:label=none"),
    ],
)
def test_a_word_becomes_canonical_and_means_the_same_again(word, canonical):
    made = read_word(Feeder, word)
    assert made.variant == canonical
    assert read_word(Feeder, canonical) == made
    assert build(Feeder, made.options) == made


@pytest.mark.parametrize(
    ("word", "complaint"),
    [
        ("workers=-1", "feeder:workers=-1: workers must be a whole number from 0 to 64"),
        ("workers=65", "feeder:workers=65: workers must be a whole number from 0 to 64"),
        ("workers=none", "feeder:workers=none: workers must be a whole number from 0 to 64"),
        ("workers=1.5", "feeder:workers=1.5: workers must be a whole number from 0 to 64"),
        ("threads=0", "feeder:threads=0: threads must be a whole number from 1 up, or none"),
        ("share=nan", "feeder:share=nan: share must be a number from 0 to 1"),
        ("timeout=inf", "feeder:timeout=inf: timeout must be a number from 0.1 up of seconds, or none"),
        ("timeout=0", "feeder:timeout=0: timeout must be a number from 0.1 up of seconds, or none"),
        ("pin=maybe", "feeder:pin=maybe: pin must be yes or no, or none"),
        ("shuffle=1", "feeder:shuffle=1: shuffle must be yes or no"),
        ("shuffle=none", "feeder:shuffle=none: shuffle must be yes or no"),
        ("fetch=all", "feeder:fetch=all: fetch must be one of sample, batch"),
        ("label=", "feeder:label=: label must be a word"),
        ("label=a/b", "feeder:label=a/b: label must be a word"),
        ("workers", "feeder:workers: 'workers' is not OPTION=VALUE"),
        ("workers=1,workers=2", "feeder:workers=1,workers=2: workers is given twice"),
        (
            "worker=1",
            "loader feeder has no option 'worker'; "
            "it has workers, share, timeout, pin, shuffle, threads, fetch, label",
        ),
    ],
)
def test_a_wrong_word_names_the_option_what_was_found_and_what_is_allowed(word, complaint):
    with pytest.raises(InvalidOption) as error:
        read_word(Feeder, f"feeder:{word}")
    assert str(error.value) == complaint


@pytest.mark.parametrize(
    "values", [{"workers": True}, {"workers": "1"}, {"pin": 1}, {"share": "0"}, {"fetch": None}, {"label": 5}]
)
def test_a_value_of_another_type_is_refused(values):
    with pytest.raises(InvalidOption):
        Feeder(**values)


def test_a_field_that_is_no_option_or_of_another_type_is_a_mistake_of_the_class():
    @dataclass(frozen=True)
    class Bare(Options):
        size: int = 5

    @dataclass(frozen=True)
    class Several(Options):
        sizes: tuple = option((), "several")

    @dataclass(frozen=True)
    class Other(Options):
        size: int = field(default=1, metadata={"unit": "bytes"})

    for cls in (Bare, Several, Other):
        with pytest.raises(TypeError, match=r"is not an option\(\)"):
            declared(cls)
