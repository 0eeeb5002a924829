"""Format audio: other libraries read the files, folders are read in place, each clip has its length."""

import wave

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kinds import refused_as
from ragged_cases import assert_reads, clips_of, samples
from record_cases import delivered

import iobench
from iobench import formats
from iobench.base.errors import CorruptArtifact, UnsupportedSchema
from iobench.dataset.add import add
from iobench.dataset.sources import open_source
from iobench.formats import Field, Schema

soundfile = pytest.importorskip("soundfile")

AUDIO = formats.get("audio")
LENGTHS = [5, 0, 3000, 1, 17]


@settings(deadline=None, max_examples=20)
@given(
    st.lists(st.sampled_from(LENGTHS), min_size=1, max_size=8),
    st.sampled_from([(-1,), (-1, 1), (-1, 2)]),
    st.sampled_from(["int16", "float32"]),
    st.data(),
)
def test_what_was_written_is_read(tmp_path_factory, lengths, shape, dtype, data):
    path = tmp_path_factory.mktemp("audio") / "a"
    schema, batch = clips_of(lengths, shape, dtype)
    cut = len(lengths) // 2
    halves = [{n: a[part] for n, a in batch.items()} for part in (slice(0, cut), slice(cut, None))]
    AUDIO.write(path, schema, halves)
    rows = np.array(data.draw(st.lists(st.integers(0, len(lengths) - 1))), np.int64)
    with AUDIO.open(path, schema) as reader:
        assert_reads(reader, batch, slice(None), slice(0, 1), rows)
    with pytest.raises(ValueError, match="closed"):
        reader.batch(slice(0, 1))


def test_pythons_own_library_reads_what_was_written(tmp_path):
    schema, batch = clips_of(LENGTHS, (-1, 2))
    formats.parse("audio:rate=8000").write(tmp_path / "a", schema, [batch])
    for row, expected in enumerate(samples(batch["audio"])):
        with wave.open(str(tmp_path / f"a/audio/000/{row:09}.wav")) as file:
            assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (2, 2, 8000)
            assert file.readframes(file.getnframes()) == expected


@pytest.mark.parametrize(
    "field", [Field("x", (-1,), "uint16"), Field("x", (3,), "int16"), Field("x", (-1, 2, 2), "int16")]
)
def test_other_samples_are_refused(field):
    totals = {"x": 4} if field.is_ragged else {}
    with refused_as("not-audio", UnsupportedSchema):
        AUDIO.check_schema(Schema(2, (field,), totals=totals))


def class_folder(path, suffix=".wav", **options):
    """Write clips of two classes; return them in the order in which they are read."""
    rng, clips = np.random.default_rng(2), []
    for number, (name, count) in enumerate({"no": 3, "yes": 20}.items()):
        (path / name).mkdir(parents=True)
        for row in range(count):
            clip = rng.integers(-9000, 9000, int(rng.integers(0, 4000))).astype(np.int16)
            soundfile.write(path / name / f"{row:03}{suffix}", clip, 16_000, **options)
            clips.append((clip, number))
    return clips


@pytest.mark.parametrize("suffix", [".wav", ".flac"])
def test_a_folder_per_class_goes_through_every_step(tmp_path, suffix):
    clips = class_folder(tmp_path / "speech", suffix)
    manifest, _ = add(tmp_path / "speech", data_dir=tmp_path / "data")
    assert [field.typed for field in manifest.schema.fields] == ["audio=int16[*]", "label=int64"]
    with manifest.opener("audio")() as reader:
        read = reader.batch(slice(None))
    assert samples(read["audio"]) == [clip.tobytes() for clip, _ in clips]
    assert read["label"].tolist() == [label for _, label in clips]
    prepared = iobench.prepare(
        open_source(tmp_path / "speech"), ["npy", "audio", "parquet"], data_dir=tmp_path / "data", name="mine"
    )[0]
    assert prepared.content == manifest.content
    for dataset in (manifest, prepared):
        out = tmp_path / f"{dataset.name}.jsonl"
        delivered(dataset, ("all",), ("native", "stream", "dataloader"), out, batch_size=(4,))


def test_clips_that_int16_cannot_hold_are_float32(tmp_path):
    class_folder(tmp_path / "a", subtype="PCM_24")
    assert AUDIO.infer_schema(tmp_path / "a").field("audio").dtype == "float32"


def test_several_sample_rates_are_noted(tmp_path):
    class_folder(tmp_path / "a")
    assert AUDIO.notes(tmp_path / "a", AUDIO.infer_schema(tmp_path / "a")) == []
    soundfile.write(tmp_path / "a/no/z.wav", np.zeros(5, np.int16), 44_100)
    (note,) = AUDIO.notes(tmp_path / "a", AUDIO.infer_schema(tmp_path / "a"))
    assert (note.kind, note.values["rates"]) == ("sample-rates", "16,000, 44,100")


def cut(path):
    path.write_bytes(path.read_bytes()[:20])


def stereo(path):
    soundfile.write(path, np.zeros((5, 2), np.int16), 16_000)


@pytest.mark.parametrize(("damage", "cause"), [(cut, "corrupt-artifact"), (stereo, "unequal-channels")])
def test_a_damaged_or_odd_clip_is_named(tmp_path, damage, cause):
    class_folder(tmp_path / "a")
    schema = AUDIO.infer_schema(tmp_path / "a")
    damage(tmp_path / "a/yes/003.wav")
    with refused_as(cause, match=r"003\.wav"):
        AUDIO.infer_schema(tmp_path / "a")
    with AUDIO.open(tmp_path / "a", schema) as reader, pytest.raises(CorruptArtifact, match=r"003\.wav"):
        reader.batch(slice(None))
