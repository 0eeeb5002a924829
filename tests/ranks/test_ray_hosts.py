"""Runs over the hosts of a Ray cluster, without Ray: forwarded lines, lost hosts, verified copies."""

import sys

import pytest
from conftest import complaint
from kinds import complaint_kind, kind

from iobench.base.errors import CorruptArtifact, PrepareError, RankLost, WrongContent
from iobench.ranks import ray_hosts
from iobench.ranks.ray_hosts import Receiver, follow
from iobench.terminal import scaling

RANK_LOST = "iobench: error[rank-gone]: rank 1 on beta"
HOST_GONE = RankLost("beta", kind="host-gone")


class Host:
    """A host that returns the given answers one by one, and repeats the last."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def ask(self, method, *arguments, limit_s=1.0):
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(ray_hosts, "POLL_S", 0.001)


@pytest.mark.parametrize(
    ("answers", "code", "lines"),
    [
        (  # the lines of the first host
            [[(["round 1"], None), (["round 2"], None), ([], 0)], [(["torch's own"], None), ([], 0)]],
            *(0, ["round 1", "round 2"]),
        ),
        ([[([RANK_LOST], 1)], [([RANK_LOST], 1)]], 1, [RANK_LOST]),  # the same error of all is one line
        ([[([], None), ([RANK_LOST], 1)], [HOST_GONE]], 1, [RANK_LOST]),  # the others name its rank
    ],
)
def test_lines_of_the_first_host_and_errors_of_all_are_forwarded(answers, code, lines):
    said = []
    assert follow([Host(*given) for given in answers], said.append) == code
    assert said == lines


@pytest.mark.parametrize("first", [([], 0), ([], None)])
def test_a_lost_host_that_no_rank_reports_ends_the_run_with_its_name(first, monkeypatch):
    """Even if the ranks of the others never end."""
    monkeypatch.setattr(ray_hosts, "ENDING_S", 0.05)
    lines = []
    assert follow([Host(first), Host(HOST_GONE)], lines.append) == 1
    (line,) = lines
    assert "[host-gone]" in line
    assert line.endswith(" beta")


def test_its_own_options_are_not_passed_on():
    typed = ["run", "--ray", "a:1", "--ranks-per-host=2", "--format", "npy", "--json"]
    assert scaling.passed_on(typed) == ["run", "--format", "npy"]


@pytest.mark.parametrize(
    ("words", "option"),
    [(("--ranks-per-host", "2"), "--ray"), (("--ray", "a:1", "--ranks", "2"), "--ranks-per-host")],
)
def test_options_of_ranks_and_ray_that_exclude_each_other_are_refused(words, option, own_images, inside):
    line = complaint(inside("run", "--data-dir", own_images.root.parent, *words), 2)
    assert line.count("--") >= 2
    assert option in line


@pytest.mark.parametrize(
    ("address", "example"),
    [("127.0.0.1:1", ""), ("nowhere", "10.0.0.1:6379"), ("127.0.0.1:99999", "10.0.0.1:6379")],
)
def test_an_address_without_a_cluster_is_one_line_that_says_how_to_start_one(
    address, example, own_images, inside
):
    pytest.importorskip("ray", reason="Ray is not installed")
    done = inside("run", "--data-dir", own_images.root.parent, "--ray", address)
    assert complaint_kind(done) == "no-cluster"
    line = complaint(done, 1)
    assert address in line
    assert example in line
    assert "RAY_AUTH_MODE=token" in line


def test_without_ray_the_error_has_the_pip_command(own_images, inside, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    done = inside("run", "--data-dir", own_images.root.parent, "--ray", "127.0.0.1:1")
    assert complaint_kind(done) == "missing-dependency"
    assert complaint(done, 1).endswith("'iobench[ray]'")


@pytest.fixture
def there(tmp_path):
    """Folder of the copy on the other host."""
    return tmp_path / "other" / "data" / "images"


def sent(receiver, manifest, there, damaged=""):
    assert not receiver.begin(str(there), manifest.content, list(manifest.artifacts))
    for name, piece in ray_hosts.pieces_of(manifest.root):
        receiver.take(name, bytes([piece[-1] ^ 1]).join([piece[:-1], b""]) if name == damaged else piece)
    receiver.verify()


def test_a_copy_is_verified_before_it_is_in_its_place(own_images, there, monkeypatch):
    monkeypatch.setattr(ray_hosts, "PIECE", 1000)
    sent(Receiver(), own_images, there)
    assert Receiver().begin(str(there), own_images.content, ["npy"])  # it is there now
    assert [path.name for path in there.parent.iterdir()] == [there.name]


def test_a_damaged_copy_is_refused_and_removed(own_images, there):
    damaged = next(name for name, _ in ray_hosts.pieces_of(own_images.root) if name.endswith("x.npy"))
    with pytest.raises(WrongContent, check=lambda error: error.path == str(there)):
        sent(Receiver(), own_images, there, damaged)
    assert list(there.parent.iterdir()) == []


def test_other_data_under_the_same_name_stay(own_images, there):
    sent(Receiver(), own_images, there)
    fields = {"path": there, "expected": f"content {1:016x}", "found": f"{own_images.content:016x}"}
    with pytest.raises(PrepareError, check=kind("other-content", **fields)):
        Receiver().begin(str(there), 1, ["npy"])
    with pytest.raises(PrepareError, check=kind("missing-variants", path=there), match="arrow"):
        Receiver().begin(str(there), own_images.content, ["npy", "arrow"])


def test_nothing_is_written_outside_the_dataset(own_images, there):
    receiver = Receiver()
    receiver.begin(str(there), own_images.content, [])
    for name in ("../../outside", "/tmp/outside"):
        with pytest.raises(CorruptArtifact, check=kind("outside-folder"), match=name):
            receiver.take(name, b"")
