"""The answer in words: which pair is fastest, and what the format changes under each loader."""

import pytest
from record_cases import rounds_of

from iobench.results.summary import summarise
from iobench.results.under_loader import told, under_loaders
from iobench.results.verdict import brief, sentences

STEADY = [1000, 1010, 990, 1005, 995]


def times(factor):
    return [speed * factor for speed in STEADY]


def said(records):
    return sentences(summarise(records).contexts)


def grid(speeds, **common):
    """Records of `format · loader` at these multiples of the speed."""
    return [
        one
        for (variant, loader), factor in speeds.items()
        for one in rounds_of(times(factor), variant=variant, loader=loader, **common)
    ]


MIXED = {
    ("npy", "native"): 9,
    ("hdf5", "native"): 3,
    ("npy", "dataloader"): 1,
    ("memmap", "dataloader"): 1.001,
    ("hdf5", "dataloader"): 1 / 2.7,
}


def test_the_pair_comes_first_and_then_what_the_format_changes_under_each_loader():
    headline, *below = said(grid(MIXED))
    assert headline.startswith("Fastest: npy · native, 3.00 × (95 % interval")
    assert below == [
        "  under native: npy fastest; hdf5 3.00 × (2.96 – 3.05) as long",
        "  under dataloader: memmap and npy equally fast; hdf5 2.70 × (2.66 – 2.74) as long",
    ]


def test_a_round_or_two_name_the_highest_medians_and_nobody_far_behind():
    records = [
        one
        for factor, variant in ((10, "npy"), (9, "lmdb"), (1, "hdf5"))
        for one in rounds_of(times(factor)[:2], variant=variant)
    ]
    contexts = summarise(records).contexts
    headline = sentences(contexts)[0]
    assert headline.startswith("Inconclusive: highest medians npy · native and lmdb · native, 1.11 ×")
    assert "more)" not in headline
    assert brief(contexts) == "highest median, of too few rounds: npy · native"


def test_two_cases_of_one_loader_need_no_second_line():
    assert len(said(grid({("npy", "native"): 2, ("hdf5", "native"): 1}))) == 1
    assert len(said(grid({("npy", "native"): 2, ("npy", "stream"): 1}))) == 1


def test_options_of_a_loader_make_loaders_of_their_own():
    speeds = {(f, f"dataloader:fetch={how}"): 1 + (how == "batch") for f in ("npy", "lmdb") for how in HOW}
    found = under_loaders(summarise(grid(speeds)).contexts[0])
    assert [one.loader for one in found] == ["dataloader, fetch batch", "dataloader, fetch sample"]


HOW = ("sample", "batch")


def test_rounds_that_do_not_tell_formats_apart_do_not_call_them_equal():
    wild = [500, 1600, 900, 1200, 1000]
    records = grid({("npy", "stream"): 1}) + rounds_of(wild, variant="lmdb", loader="stream")
    (found,) = under_loaders(summarise(records).contexts[0])
    assert told(found).endswith("not told apart")


def training(wait, **factors):
    timing = {"wait_s": wait}
    return [
        one
        for variant, factor in factors.items()
        for loader in ("native", "dataloader")
        for one in rounds_of(
            times(factor), variant=variant, loader=loader, timing=timing, chosen={"model": "mlp"}
        )
    ]


def test_a_training_step_that_takes_the_time_leaves_the_format_no_say():
    (line,) = said(training(0.07, npy=1, hdf5=1.01))
    assert line.startswith("The training step takes 93% of the time or more with each of these: neither ")
    assert "matters here" in line


@pytest.mark.parametrize(("wait", "factor"), [(0.4, 1.01), (0.07, 0.5)])
def test_it_has_a_say_where_the_loop_waits_or_the_figures_tell_them_apart(wait, factor):
    assert "matters here" not in " ".join(said(training(wait, npy=1, hdf5=factor)))


def test_under_one_loader_alone_the_format_may_not_matter():
    slow = rounds_of(
        times(0.3), variant="npy", loader="stream", chosen={"model": "mlp"}, timing={"wait_s": 2}
    )
    _, *below = said(training(0.07, npy=1, hdf5=1.01) + slow)
    assert (
        below[0] == "  under native: the training step takes 93% of the time: the format does not matter here"
    )


def test_without_a_training_step_no_share_of_it_is_claimed():
    assert "training step" not in " ".join(said(grid(MIXED, timing={"wait_s": 0.01})))


def test_opening_is_told_apart_from_reading():
    fast = rounds_of(times(2), timing={"open_s": 5.3})
    line = said(fast + rounds_of(STEADY, variant="lmdb"))[-1]
    assert line == (
        "  Opening npy · native takes 5.30 s, once a training, which is not in these speeds: "
        "lmdb · native opens in 10.0 ms and is ahead for 10 epochs."
    )
    assert len(said(rounds_of(times(2)) + rounds_of(STEADY, variant="lmdb"))) == 1


def test_of_many_contexts_each_has_one_line_about_formats():
    records = [one for size in (1, 2, 3) for one in grid(MIXED, chosen={"batch_size": size})]
    lines = said(records)
    assert len(lines) == 6
    words = "up to 3.00 × under native (hdf5) and up to 2.70 × under dataloader (hdf5)."
    assert lines[1] == f"  What the format changes: {words}"


def test_of_many_loaders_and_formats_a_few_lines_are_left():
    formats = [f"hdf5:chunk_bytes={2**n}" for n in range(9, 24)]
    loaders = [f"dataloader:num_workers={n}" for n in range(12)]
    speeds = {(f, w): 1.5**n * (1 + m) for n, f in enumerate(formats) for m, w in enumerate(loaders)}
    lines = said(grid(speeds))
    assert len(lines) == 6
    assert lines[-1] == "  … and 8 more loaders: 'iobench report' has them all"
    assert all(" between; " in line and len(line) < 250 for line in lines[1:5])
