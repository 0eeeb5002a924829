"""Hosts of a Ray cluster: an actor on each, ranks on all of them, and copies of a dataset to them."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from iobench.base.errors import (
    IobenchError,
    ManifestError,
    PrepareError,
    RankLost,
    RanksDiffer,
    WrongContent,
    needing,
)
from iobench.base.files import TEMPORARY, path_below
from iobench.base.standard_streams import native_stderr_hidden
from iobench.base.text import reason
from iobench.base.units import MIB, bytes_text
from iobench.dataset import index_cache
from iobench.dataset.manifest import Manifest, missing_libraries
from iobench.dataset.manifest_file import FILE_NAME
from iobench.dataset.staging import LOCK, sync
from iobench.dataset.verify import verify_artifact
from iobench.ranks.launch import Launch, torchrun

REACH_S = 5.0  # for a connection to the cluster's address
PLACE_S = 60.0  # for an actor to be placed and started on each host
ANSWER_S = 30.0
LEAVING_S = 5.0
PORTS = 1 << 16
PATIENCE = {
    "RAY_NUM_REDIS_GET_RETRIES": "2",
    "RAY_py_gcs_connect_timeout_s": "10",
}  # read when Ray is imported
SAFELY = (
    "start one with RAY_AUTH_MODE=token set: 'ray start --head --node-ip-address=ADDRESS "
    "--include-dashboard=false --disable-usage-stats'"
)


@dataclass(frozen=True)
class RemoteHost:
    """Host with an actor on it."""

    name: str
    address: str
    actor: Any

    def __str__(self) -> str:
        return f"host {self.name}"

    def ask(self, method: str, *arguments: Any, limit_s: float = ANSWER_S) -> Any:
        """Call a method of the actor and return its result.

        Raises RankLost without an answer within `limit_s`, or the actor's IobenchError with the host's name
        in `problem`.
        """
        import ray
        from ray import exceptions as of_ray

        try:
            return ray.get(getattr(self.actor, method).remote(*arguments), timeout=limit_s)
        except of_ray.RayTaskError as error:
            cause = error.cause or error
            failed = (
                cause if isinstance(cause, IobenchError) else IobenchError(reason(cause), kind="host-raised")
            )
            raise failed.changed(problem=f"{self}: {failed.problem}".removesuffix(": ")) from None
        except of_ray.GetTimeoutError:
            raise RankLost(
                f"{self} did not answer within {limit_s:g} s: it, or its network, is gone", kind="host-silent"
            ) from None
        except of_ray.RayError as error:
            why = "it, its network or Ray itself is gone"
            raise RankLost(f"Ray lost {self}: {why} ({type(error).__name__})", kind="host-gone") from None


class HostActor:
    """Base class of actors of which each host has one."""

    def node(self) -> str:
        """Return Ray's identifier of its host."""
        import ray

        return str(ray.get_runtime_context().get_node_id())


@contextmanager
def hosts_of(address: str, actor: type[HostActor]) -> Iterator[list[RemoteHost]]:
    """Place an actor of a class on each host of a running cluster, until the block ends.

    Yields the hosts, this one first. Raises MissingDependency without Ray, RankLost if no cluster or a host
    does not answer in time, RanksDiffer if a host has other software.
    """
    ray = _connected(address)
    try:
        here = ray.get_runtime_context().get_node_id()
        alive = [node for node in ray.nodes() if node["Alive"]]
        nodes = sorted(alive, key=lambda node: (node["NodeID"] != here, node["NodeManagerAddress"]))
        _check_software(ray, nodes)
        with _group(ray, len(nodes)) as group:
            yield _placed(ray, group, nodes, actor)
    finally:
        if not _within(LEAVING_S, ray.shutdown):  # the cluster is gone, and Ray has not noticed yet
            atexit.unregister(ray.shutdown)


def _connected(address: str) -> Any:
    for name, value in PATIENCE.items():
        os.environ.setdefault(name, value)
    with needing("--ray", "ray"):
        import ray
    if (problem := _unreachable(address)) is not None:
        raise RankLost(
            f"--ray {address}: no Ray cluster answers there ({problem})", kind="no-cluster", hint=SAFELY
        )
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        with native_stderr_hidden():
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # noqa: BLE001 - Ray raises many kinds
        raise _refused(ray, address, error) from None
    return ray


def _refused(ray: Any, address: str, error: Exception) -> RankLost:
    """Return the error of a failed connection to a cluster."""
    last = str(error.__cause__ or error).strip().splitlines()[-1]  # its cause holds a traceback
    if "AuthenticationError" in last:
        return RankLost(
            f"--ray {address}: the Ray cluster refused the connection",
            kind="no-access",
            hint="set RAY_AUTH_MODE=token, and put the cluster's token into ~/.ray/auth_token",
        )
    why = reason(Exception(last.removeprefix("ray.exceptions.")))
    return RankLost(
        f"--ray {address}: no Ray cluster of version {ray.__version__} answers there ({why})",
        kind="no-cluster",
        hint=SAFELY,
    )


def _unreachable(address: str) -> str | None:
    """Return why no connection to HOST:PORT is possible; None if one is."""
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal() and 0 < int(port) < PORTS):
        return "give its address as in 10.0.0.1:6379"
    try:
        socket.create_connection((host, int(port)), timeout=REACH_S).close()
    except (OSError, ValueError) as error:  # ValueError for an invalid host name
        return reason(error)
    return None


def _within(seconds: float, work: Callable[[], object]) -> bool:
    """Run work in a thread and return whether it ended in time."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def _check_software(ray: Any, nodes: Sequence[dict[str, Any]]) -> None:
    """Raise RanksDiffer if a host lacks iobench, torch or NumPy, or has another version than this one."""

    def versions() -> dict[str, str]:  # self-contained, so that it runs on a host without iobench
        from importlib import metadata

        installed = {}
        for name in ("iobench", "torch", "numpy"):
            try:
                installed[name] = metadata.version(name)
            except metadata.PackageNotFoundError:
                installed[name] = "none"
        return installed

    own = versions()
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as Pinned

    remote = ray.remote(versions)
    for node in nodes:
        there = Pinned(node["NodeID"], soft=False)
        reference = remote.options(scheduling_strategy=there, num_cpus=0, max_retries=0).remote()
        try:
            theirs = ray.get(reference, timeout=PLACE_S)
        except ray.exceptions.RayError as error:
            raise RankLost(
                f"host {_name(node)} did not answer: {reason(error)}", kind="host-silent"
            ) from None
        for name, version in theirs.items():
            if version != own[name]:
                raise RanksDiffer(
                    f"host {_name(node)} has another version of {name}",
                    kind="other-software",
                    expected=f"{own[name]} as on {_name(nodes[0])}",
                    found=version,
                    hint="install the same everywhere",
                )


@contextmanager
def _group(ray: Any, count: int) -> Iterator[Any]:
    """Create a placement group with a bundle on each of `count` hosts."""
    from ray.util import placement_group, remove_placement_group

    group = placement_group([{"CPU": 1}] * count, strategy="STRICT_SPREAD")
    try:
        if not group.wait(PLACE_S):
            raise RankLost(
                f"Ray found no free processor on each of {count} hosts within {PLACE_S:g} s",
                kind="cluster-busy",
                hint="'ray status' shows what runs there",
            )
        yield group
    finally:
        _within(LEAVING_S, lambda: remove_placement_group(group))


def _placed(
    ray: Any, group: Any, nodes: Sequence[dict[str, Any]], actor: type[HostActor]
) -> list[RemoteHost]:
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy as On

    made = ray.remote(actor)
    actors = {}
    for index in range(len(nodes)):
        there = On(group, placement_group_bundle_index=index)
        one = made.options(scheduling_strategy=there, num_cpus=1, max_restarts=0).remote()
        host = RemoteHost(f"{index + 1} of {len(nodes)}", "", one)
        actors[host.ask("node", limit_s=PLACE_S)] = one
    return [RemoteHost(_name(node), node["NodeManagerAddress"], actors[node["NodeID"]]) for node in nodes]


def _name(node: dict[str, Any]) -> str:
    return str(node["NodeManagerHostname"])


POLL_S = 0.3
ENDING_S = 60.0  # for the ranks to report which one is gone, and to end
REPORTED_S = 5.0  # to end after they have reported it: torchrun waits for the one that is gone


class RankHost(HostActor):
    """Actor that runs torchrun on its host; when the actor ends, so do its ranks."""

    def __init__(self) -> None:
        self._lines = list[str]()
        self._code: int | None = None

    def port(self) -> int:
        """Return a port that is free now."""
        with socket.socket() as one:
            one.bind(("", 0))
            return int(one.getsockname()[1])

    def start(self, count: int, where: Sequence[str], arguments: Sequence[str], address: str) -> None:
        """Start `count` ranks, which reach those of other hosts by the interface of `address`."""
        interface = interface_of(address)
        environment = {
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "TORCH_CPP_LOG_LEVEL": "ERROR",  # it warns of addresses without a name
            **({"GLOO_SOCKET_IFNAME": interface} if interface else {}),
        }
        if os.environ.get("CUDA_VISIBLE_DEVICES") == "":  # Ray hides devices that were not reserved
            del os.environ["CUDA_VISIBLE_DEVICES"]

        def run() -> None:
            self._code = torchrun(count, arguments, self._lines.append, where, environment)

        threading.Thread(target=run, name="iobench-torchrun", daemon=True).start()

    def poll(self) -> tuple[list[str], int | None]:
        """Return the lines of its ranks since the last call, and the exit code once they have ended."""
        code = self._code
        lines, self._lines[:] = list(self._lines), []
        return lines, code


@contextmanager
def launcher(address: str) -> Iterator[tuple[int, Launch]]:
    """Yield the number of a cluster's hosts, and a launcher of ranks on all of them together."""
    with hosts_of(address, RankHost) as hosts:

        def launch(count: int, arguments: Sequence[str], say: Callable[[str], None]) -> int:
            master = hosts[0].address, hosts[0].ask("port")  # rank 0 is on the first host
            for number, host in enumerate(hosts):
                where = [f"--nnodes={len(hosts)}", f"--node-rank={number}"]
                where += [f"--master-addr={master[0]}", f"--master-port={master[1]}"]
                host.ask("start", count // len(hosts), where, list(arguments), host.address)
            return follow(hosts, say)

        yield len(hosts), launch


def follow(hosts: Sequence[RemoteHost], say: Callable[[str], None]) -> int:
    """Pass on the lines of the first host and the errors of all, until all ended; return the exit code.

    If a host is lost, the ranks of the others have `ENDING_S` to report it, and then `REPORTED_S` to end.
    """
    running, codes, complaints = list(hosts), list[int](), list[str]()
    lost: list[RankLost] = []
    until = float("inf")
    while running and time.monotonic() < until:
        for host in list(running):
            try:
                lines, code = host.ask("poll", limit_s=ENDING_S / 2)
            except RankLost as error:
                running.remove(host)
                lost.append(error)
                until = min(until, time.monotonic() + ENDING_S)
                continue
            for line in lines:
                complaint = line.startswith("iobench: ")
                if line not in complaints and (complaint or host is hosts[0]):
                    say(line)
                complaints += [line] * complaint
            if lost and complaints:
                until = min(until, time.monotonic() + REPORTED_S)
            if code is not None:
                running.remove(host)
                codes.append(code)
        time.sleep(POLL_S)
    if lost and not complaints:
        say(f"iobench: error[{lost[0].kind}]: {lost[0]}")
    return 1 if lost or running or any(codes) else 0


def interface_of(address: str) -> str | None:
    """Return the network interface that has an address; None if none has."""
    for name, addresses in psutil.net_if_addrs().items():
        if address in (one.address for one in addresses):
            return name
    return None


PIECE = 8 * MIB
VERIFY_S = 3600.0  # for a host to read its copy back


class Receiver(HostActor):
    """Actor that receives a dataset's files, verifies them, and moves them to their place atomically."""

    def __init__(self) -> None:
        self._root = self._staging = Path()

    def begin(self, root: str, content: int | None, variants: Sequence[str]) -> bool:
        """Return whether the same data are there in all variants.

        Raises PrepareError if other data, or only some of the variants, are there.
        """
        self._root = Path(root)
        if (self._root / FILE_NAME).exists():
            present = Manifest.load(self._root)
            if present.content != content:
                raise PrepareError(
                    "the folder holds another dataset",
                    kind="other-content",
                    path=root,
                    expected=f"content {content or 0:016x}",
                    found=f"{present.content or 0:016x}",
                    hint="remove it there, or choose another --name",
                )
            if missing := set(variants) - set(present.artifacts):
                raise PrepareError(
                    f"the folder holds the same data without {', '.join(sorted(missing))}",
                    kind="missing-variants",
                    path=root,
                    hint="remove it there",
                )
            return True
        staging = f"{TEMPORARY}copy-{self._root.name}-"
        for left in self._root.parent.glob(f"{staging}*"):  # by interrupted copies
            shutil.rmtree(left, ignore_errors=True)
        self._staging = self._root.parent / f"{staging}{os.getpid()}"
        self._staging.mkdir(parents=True)
        return False

    def take(self, name: str, piece: bytes) -> None:
        """Append to a file; raises CorruptArtifact if its name leads out of the folder."""
        path = path_below(self._staging, name, self._root)
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab") as file:
            file.write(piece)

    def verify(self) -> None:
        """Read everything back and move the copy to its place; raises WrongContent if it is damaged."""
        manifest = Manifest.load(self._staging if self._staging.name else self._root)
        unreadable = missing_libraries(manifest)
        try:
            for variant in manifest.artifacts:
                if variant not in unreadable:
                    verify_artifact(manifest, variant)
        except IobenchError as error:
            if self._staging.name:
                shutil.rmtree(self._staging, ignore_errors=True)
            damaged: dict[str, Any] = {**error.fields(), "path": self._root}
            raise WrongContent(**damaged) from error
        if self._staging.name:
            sync(self._staging)
            self._staging.rename(self._root)


def copy_to_all(manifest: Manifest, address: str, say: Callable[[str], None]) -> None:
    """Copy a dataset to the same path on every host of a cluster, and verify each copy there.

    A copy that exists, as on shared storage, is only verified. `say` receives one line per host. Raises
    IobenchError, which names the host, if one cannot have the copy.
    """
    if any(artifact.added for artifact in manifest.artifacts.values()):
        raise ManifestError(
            f"dataset {manifest.name} was added, and iobench does not copy data outside its own folder",
            kind="added-data",
            hint="copy them yourself, or put them on storage that all hosts share",
        )
    with hosts_of(address, Receiver) as hosts:
        for host in hosts[1:]:
            say(_copied(manifest, host))


def _copied(manifest: Manifest, host: RemoteHost) -> str:
    root = manifest.root.absolute()
    exists = host.ask("begin", str(root), manifest.content, list(manifest.artifacts))
    sent = 0
    if not exists:
        for name, piece in pieces_of(root):
            host.ask("take", name, piece)
            sent += len(piece)
    host.ask("verify", limit_s=VERIFY_S)
    what = "exists" if exists else f"copied ({bytes_text(sent)})"
    return f"{host}: {root} {what}, verified by checksum"


def pieces_of(root: Path) -> Iterator[tuple[str, bytes]]:
    """Yield every file of a dataset in pieces, the manifest last, without caches and lock of this host."""
    own = (index_cache.FOLDER, LOCK)
    files = [p for p in sorted(root.rglob("*")) if p.is_file() and p.relative_to(root).parts[0] not in own]
    for path in sorted(files, key=lambda path: path.name == FILE_NAME):
        if path.is_symlink():
            raise PrepareError("a prepared dataset has no symbolic links", kind="unsafe-path", path=path)
        with open(path, "rb") as file:
            yield str(path.relative_to(root)), file.read(PIECE)  # also of an empty file
            while piece := file.read(PIECE):
                yield str(path.relative_to(root)), piece
