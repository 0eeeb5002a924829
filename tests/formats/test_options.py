"""Options of formats and loaders: declaration, variants and errors."""

from dataclasses import dataclass, field
from typing import ClassVar

import pytest
from kinds import has, refused_as

from iobench.base.errors import InvalidOption
from iobench.base.options import Options, build, declared, option, read_word


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
def test_a_variant_becomes_canonical_and_can_be_parsed_back(word, canonical):
    made = read_word(Feeder, word)
    assert made.variant == canonical
    assert read_word(Feeder, canonical) == made
    assert build(Feeder, made.options) == made


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("workers", "-1", "an integer from 0 to 64"),
        ("workers", "65", "an integer from 0 to 64"),
        ("workers", "none", "an integer from 0 to 64"),
        ("workers", "1.5", "an integer from 0 to 64"),
        ("threads", "0", "an integer ≥ 1, or none"),
        ("share", "nan", "a number from 0 to 1"),
        ("timeout", "inf", "a number ≥ 0.1 in seconds, or none"),
        ("timeout", "0", "a number ≥ 0.1 in seconds, or none"),
        ("pin", "maybe", "yes or no, or none"),
        ("shuffle", "1", "yes or no"),
        ("shuffle", "none", "yes or no"),
        ("fetch", "all", "one of sample, batch"),
        ("label", "", "letters, digits and . _ = + * -"),
        ("label", "a/b", "letters, digits and . _ = + * -"),
    ],
)
def test_an_invalid_value_names_the_option_the_value_and_the_allowed_ones(option, value, allowed):
    with pytest.raises(InvalidOption, match=f"feeder:{option}") as error:
        read_word(Feeder, f"feeder:{option}={value}")
    fields = {"kind": "invalid-value", "expected": allowed, "found": value or "no value"}
    assert fields.items() <= error.value.fields().items()


@pytest.mark.parametrize(
    ("word", "name", "fields"),
    [
        ("workers", "malformed-option", {"expected": "OPTION=VALUE", "found": "'workers'"}),
        ("workers=1,workers=2", "repeated-option", {}),
        ("worker=1", "unknown-option", {"hint": has("workers?", "workers, share, timeout, pin, shuffle")}),
        ("zzz=1", "unknown-option", {"hint": has("it has workers, share")}),
    ],
)
def test_a_malformed_or_unknown_option_is_refused(word, name, fields):
    with refused_as(name, InvalidOption, match=word.partition("=")[0], **fields) as error:
        read_word(Feeder, f"feeder:{word}")
    assert "zzz" not in word or "?" not in error.value.hint


@pytest.mark.parametrize(
    "values", [{"workers": True}, {"workers": "1"}, {"pin": 1}, {"share": "0"}, {"fetch": None}, {"label": 5}]
)
def test_a_value_of_another_type_is_refused(values):
    with refused_as("invalid-value", InvalidOption):
        Feeder(**values)


def test_a_field_that_is_not_an_option_of_a_known_type_is_a_type_error():
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
        with pytest.raises(TypeError, match=r"option\(\)"):
            declared(cls)
