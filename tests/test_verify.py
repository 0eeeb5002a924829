"""Verify reports every artifact that differs from the manifest, and no other."""

import os
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from conftest import Arrays, damage, image_arrays
from kinds import has, kind

import iobench
from iobench.base.errors import WrongContent
from iobench.dataset import sandbox
from iobench.dataset.prepare import DEFAULT_FORMATS
from iobench.dataset.verify import verify_artifact


def only_problem(manifest, variant):
    """Return the error that verify reports for the only damaged artifact."""
    damages = iobench.verify(manifest)
    assert list(damages) == list(manifest.artifacts)
    assert [v for v, error in damages.items() if error] == [variant]
    assert "\n" not in str(damages[variant])
    assert damages[variant].path.startswith(str(manifest.path_of(variant)))
    return damages[variant]


def largest(manifest, variant):
    return max(manifest.files_of(variant), key=lambda path: path.stat().st_size)


def test_intact_artifacts_pass(own_images, every_dtype):
    for manifest in (own_images, every_dtype):
        assert iobench.verify(manifest) == dict.fromkeys(DEFAULT_FORMATS)


def touch(manifest, variant):
    for file in manifest.files_of(variant):
        os.utime(file)


@pytest.mark.parametrize("variant", DEFAULT_FORMATS)
def test_a_touched_artifact_passes(own_images, variant):
    touch(own_images, variant)
    assert iobench.verify(own_images, [variant]) == {variant: None}


def test_a_file_of_a_sample_without_arrays_is_reported(tmp_path):
    manifest, _ = iobench.prepare(Arrays(x=np.ones((3, 2))), ["samples"], data_dir=tmp_path, name="d")
    file = manifest.files_of("samples")[0]
    comment = bytes(file.stat().st_size - 22)
    file.write_bytes(b"PK\5\6" + bytes(16) + struct.pack("<H", len(comment)) + comment)  # a zip of nothing
    assert kind("corrupt-artifact")(only_problem(manifest, "samples"))


def crashing(connection, heartbeats):
    os.abort()


def test_a_library_that_aborts_on_a_touched_artifact_is_reported(own_images, monkeypatch):
    monkeypatch.setattr(sandbox, "WORKER", f"{__name__}:crashing")
    assert iobench.verify(own_images, ["npy"]) == {"npy": None}
    touch(own_images, "npy")
    assert kind("reader-crashed")(iobench.verify(own_images, ["npy"])["npy"])


def test_reading_ends_with_its_time(own_images, monkeypatch):
    monkeypatch.setattr(iobench.formats.Schema, "batch_rows", lambda self, size: 10)
    done = []
    verify_artifact(own_images, "npy", lambda what, some, all: done.append(some / all), seconds=0.0)
    assert max(done) < 0.1
    for file in (own_images.root / ".index").glob("*.hashes"):
        file.unlink()
    with pytest.raises(WrongContent, check=kind("no-hashes")):
        verify_artifact(own_images, "npy", seconds=0.0)
    verify_artifact(own_images, "npy", seconds=600.0)


def overwrite(content):
    return lambda file: file.write_bytes(content * file.stat().st_size)


DAMAGES = {  # and the kind of the error, where formats do not differ in it
    "a changed byte": (damage, None),
    "truncated": (lambda file: os.truncate(file, file.stat().st_size // 2), "wrong-size"),
    "missing": (Path.unlink, "missing-file"),
    "no folder": (lambda file: shutil.rmtree(file.parent), "missing-file"),
    "zeros": (overwrite(b"\0"), None),
    "text": (overwrite(b"?"), None),
}


@pytest.mark.parametrize("variant", DEFAULT_FORMATS)
@pytest.mark.parametrize(("harm", "name"), DAMAGES.values(), ids=DAMAGES)
def test_damage_is_reported(own_images, variant, harm, name):
    harm(largest(own_images, variant))
    problem = only_problem(own_images, variant)
    assert name in (None, problem.kind)


@pytest.mark.parametrize("variant", DEFAULT_FORMATS)
def test_the_artifact_of_other_data_is_reported(own_images, tmp_path, variant):
    arrays = image_arrays()
    arrays["y"] = arrays["y"][::-1]
    other, _ = iobench.prepare(
        Arrays(rows=len(arrays["y"]), **arrays), [variant], data_dir=tmp_path / "other"
    )
    shutil.copytree(other.path_of(variant), own_images.path_of(variant), dirs_exist_ok=True)
    assert kind("other-content")(only_problem(own_images, variant))


def test_samples_in_another_order_are_reported(own_images):
    for file in own_images.files_of("npy"):
        array = np.load(file)
        header = file.stat().st_size - array.nbytes
        file.write_bytes(file.read_bytes()[:header] + np.ascontiguousarray(array[::-1]).tobytes())
    assert kind("other-order")(only_problem(own_images, "npy"))
    expected = "row 0 as it was hashed"
    with pytest.raises(WrongContent, check=kind("other-order", expected=expected)):
        verify_artifact(own_images, "npy")


def test_each_of_several_damages_is_named(own_images):
    damage(largest(own_images, "npy"))
    largest(own_images, "hdf5").unlink()
    damages = iobench.verify(own_images)
    assert {v for v, error in damages.items() if error} == {"npy", "hdf5"}


def test_a_variant_may_be_written_in_any_way(own_images):
    assert iobench.verify(own_images, ["hdf5:compression=none"]) == {"hdf5": None}


def test_a_variant_that_is_not_prepared_is_named(own_images):
    damages = iobench.verify(own_images, ["npy", "lmdb:codec=lz4"])
    assert damages["npy"] is None
    hint = has(f"--name {own_images.name} --format lmdb:codec=lz4")
    assert kind("not-prepared", expected="lmdb:codec=lz4", hint=hint)(damages["lmdb:codec=lz4"])


@pytest.mark.parametrize("touched", [False, True])
def test_progress_reaches_all_bytes(own_images, capfd, monkeypatch, touched):
    monkeypatch.setattr(iobench.formats.Schema, "batch_rows", lambda self, size: 10)
    if touched:
        touch(own_images, "npy")
    seen = []
    iobench.verify(own_images, ["npy"], progress=lambda *step: seen.append(step))
    total = own_images.schema.logical_bytes
    assert seen[0] == ("verifying npy", 0, total)
    assert seen[-1] == ("verifying npy", total, total)
    assert len(seen) > 10
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("variant", DEFAULT_FORMATS)
def test_pages_of_zeros_are_reported_and_crash_nothing(own_images, variant):
    """LMDB aborts its process on some of these; verify must survive that."""
    file = largest(own_images, variant)
    whole = file.read_bytes()
    for page in np.random.default_rng(0).integers(0, len(whole) // 4096, 8):
        file.write_bytes(whole[: page * 4096] + bytes(4096) + whole[(page + 1) * 4096 :])
        only_problem(own_images, variant)
