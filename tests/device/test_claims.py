"""Claims of the studies about a GPU, on the simulated one: accounting, not speed."""

import pytest
from backend import NAME
from simulated import device

from iobench.bench.training import Trainer
from iobench.loading.host_to_device import HostToDevice
from iobench.studies import _epochs, settings
from iobench.studies._claims import NOT_REPRODUCED, REPRODUCED, Claims
from iobench.studies._rounds import Measurements, interleave
from iobench.studies.settings import Combination, Resident

pytest_plugins = "plugged"

WHERE = f"{NAME}:0"


@pytest.fixture
def measured(plug_in, monkeypatch, tmp_path):
    """Return measurements of the study of settings: rows of each kind, for small and large data."""
    from iobench import Synthetic, prepare

    plug_in("everything late")
    monkeypatch.setattr(settings, "BATCH", 8)
    openers = {}
    for share in (settings.SMALL, settings.LARGE):
        source = Synthetic(share * 3 * 64, (64,))
        openers[share] = prepare(source, ["npy"], data_dir=tmp_path, name=f"s{share}")[0].opener("npy")

    def measure():
        rows = {row: settings.TABLE[row] for row in (2, 10, 11)}
        contenders = {
            settings.label_at(one.label, share): one.contender(opener, WHERE, 1)
            for share, opener in openers.items()
            for one in rows.values()
        }
        result = interleave(contenders, rounds=1)
        sizes = {str(share): opener.schema.logical_bytes for share, opener in openers.items()}
        monkeypatch.setattr(settings, "TABLE", {n: rows.get(n, rows[2]) for n in settings.TABLE})
        return Measurements(result.seconds, result.metrics, {"gpu": True, "data_bytes": sizes})

    return measure


def test_gpu_memory_is_per_contender_and_grows_only_if_all_data_are_there(measured):
    assert settings.gpu_memory(Claims(measured())).verdict == REPRODUCED


def test_the_claim_is_not_reproduced_if_the_data_do_not_stay_there(measured, monkeypatch):
    monkeypatch.setitem(settings.TABLE, 11, Combination())
    assert settings.gpu_memory(Claims(measured())).verdict == NOT_REPRODUCED


def test_the_table_s_last_row_has_all_data_on_the_device_before_the_first_batch(late, images):
    loader = Resident().on(WHERE)
    epochs = loader.open(settings.shuffled(images.opener("npy"), WHERE))
    assert late.pools[0].allocated >= images.schema.logical_bytes
    epochs.close()


def test_forward_and_backward_are_each_timed_to_the_device_s_end(late, images, monkeypatch):
    """Timing up to the host's submission would give no time at all."""
    ended = []

    class Meter(_epochs.Meter):
        def __exit__(self, *exc):
            ended.append(late.unfinished())
            super().__exit__(*exc)

    monkeypatch.setattr(_epochs, "Meter", Meter)
    monkeypatch.setattr(Trainer, "forward", lambda self, batch: late.work(0, 0.01))
    monkeypatch.setattr(Trainer, "backward", lambda self, loss: late.work(0, 0.02))
    train = _epochs.TrainingInParts(images.opener("npy"), HostToDevice(device(0), True))
    train({})
    assert ended == [0, 0]
    monkeypatch.setattr(HostToDevice, "synchronize", lambda self: None)  # the mutation
    train({})
    assert ended[2:] == [1, 2]


def test_without_a_driver_report_gpu_busy_is_unknown(late, images):
    contender = Combination().contender(images.opener("npy"), WHERE, 1)
    result = contender()
    assert "gpu_busy" not in result.metrics
    assert result.metrics["gpu_allocated_bytes"] > 0
