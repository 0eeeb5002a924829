"""Runs over the hosts of a Ray cluster: who is heard, who is lost, copies that are proved. Without Ray."""

import sys

import pytest
from conftest import complaint

from iobench.base.errors import (
    PrepareError,
    RankLost,
    WrongContent,
)
from iobench.ranks import copies, over_ray
from iobench.ranks.copies import Receiver
from iobench.ranks.over_ray import followed
from iobench.terminal import scaling

RANK_LOST = "iobench: rank 1 on beta is gone: its process ended"


class Host:
    """A host that answers `heard` with what it was given, one answer at a time; the last one again."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def ask(self, what, *arguments, limit_s=1.0):
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(over_ray, "POLL_S", 0.001)
    monkeypatch.setattr(over_ray, "ENDING_S", 0.05)


def test_what_the_first_host_says_is_passed_on_and_of_others_their_complaints():
    said = []
    first = Host((["round 1"], None), (["round 2"], None), ([], 0))
    assert followed([first, Host((["torch's own"], None), ([], 0))], said.append) == 0
    assert said == ["round 1", "round 2"]


def test_the_same_complaint_of_several_hosts_is_one_line():
    said = []
    assert followed([Host(([RANK_LOST], 1)), Host(([RANK_LOST], 1))], said.append) == 1
    assert said == [RANK_LOST]


def test_where_a_host_is_lost_its_rank_is_named_by_the_others():
    said = []
    gone = RankLost("host beta is gone: the actor died")
    assert followed([Host(([], None), ([RANK_LOST], 1)), Host(gone)], said.append) == 1
    assert said == [RANK_LOST]


@pytest.mark.parametrize("first", [([], 0), ([], None)])
def test_a_lost_host_of_which_nobody_speaks_ends_the_run_with_its_name(first):
    """Also where the ranks of the others never end."""
    said = []
    assert followed([Host(first), Host(RankLost("host beta is gone"))], said.append) == 1
    assert said == ["iobench: host beta is gone"]


def test_its_own_options_are_not_passed_on():
    typed = ["run", "--ray", "a:1", "--ranks-per-host=2", "--format", "npy", "--json"]
    assert scaling.passed_on(typed) == ["run", "--format", "npy"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--ranks-per-host", "2"), "name their cluster by --ray"),
        (("--ray", "a:1", "--ranks", "2"), "with --ray give --ranks-per-host"),
        (("--ray", "127.0.0.1:1"), "no Ray cluster answers there"),
        (("--ray", "nowhere"), "no Ray cluster answers there (give its address as in 10.0.0.1:6379)"),
        (("--ray", "127.0.0.1:99999"), "no Ray cluster answers there (give its address as in 10.0.0.1:6379)"),
    ],
)
def test_what_cannot_be_is_one_line(words, said, own_images, inside):
    if "no Ray" in said:
        pytest.importorskip("ray", reason="Ray is not installed")
    data_dir = own_images.root.parent
    line = complaint(inside("run", "--data-dir", data_dir, *words), 1 if "no Ray" in said else 2)
    assert said in line
    assert "no Ray" not in said or "RAY_AUTH_MODE=token" in line  # and how to start one safely


def test_without_ray_the_pip_command(own_images, inside, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    done = inside("run", "--data-dir", own_images.root.parent, "--ray", "127.0.0.1:1")
    assert "pip install 'iobench[ray]'" in complaint(done, 1)


@pytest.fixture
def there(tmp_path):
    """Where the copy goes on the other host."""
    return tmp_path / "other" / "data" / "images"


def sent(receiver, manifest, there, damaged=""):
    assert not receiver.begin(str(there), manifest.content, list(manifest.artifacts))
    for name, piece in copies._pieces(manifest.root):
        receiver.take(name, bytes([piece[-1] ^ 1]).join([piece[:-1], b""]) if name == damaged else piece)
    receiver.prove()


def test_a_copy_is_proved_and_then_in_its_place(own_images, there, monkeypatch):
    monkeypatch.setattr(copies, "PIECE", 1000)
    sent(Receiver(), own_images, there)
    assert Receiver().begin(str(there), own_images.content, ["npy"])  # which is there now
    assert [path.name for path in there.parent.iterdir()] == [there.name]


def test_a_copy_that_differs_is_refused_and_goes(own_images, there):
    damaged = next(name for name, _ in copies._pieces(own_images.root) if name.endswith("x.npy"))
    with pytest.raises(WrongContent):
        sent(Receiver(), own_images, there, damaged)
    assert list(there.parent.iterdir()) == []


def test_other_data_under_the_same_name_stay(own_images, there):
    sent(Receiver(), own_images, there)
    with pytest.raises(PrepareError, match="holds other data"):
        Receiver().begin(str(there), 1, ["npy"])
    with pytest.raises(PrepareError, match="holds the same data without arrow"):
        Receiver().begin(str(there), own_images.content, ["npy", "arrow"])


def test_nothing_is_written_outside_the_dataset(own_images, there):
    receiver = Receiver()
    receiver.begin(str(there), own_images.content, [])
    for name in ("../../outside", "/tmp/outside"):
        with pytest.raises(PrepareError, match="no name of a file"):
            receiver.take(name, b"")
