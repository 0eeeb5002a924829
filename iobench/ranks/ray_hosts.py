"""The hosts of a Ray cluster: an actor on each, this process's own host first, and answers within limits."""

from __future__ import annotations

import atexit
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from iobench.base.errors import (
    IobenchError,
    MissingDependency,
    RankLost,
    RanksDiffer,
)
from iobench.base.text import reason

REACH_S = 5.0  # for a cluster's address to answer
PLACE_S = 60.0  # for an actor to be placed on each host, and to have begun
ANSWER_S = 30.0
LEAVING_S = 5.0
PORTS = 1 << 16
PATIENCE = {"RAY_NUM_REDIS_GET_RETRIES": "2", "RAY_py_gcs_connect_timeout_s": "10"}  # read as Ray is imported
SAFELY = (
    "start one with RAY_AUTH_MODE=token set: 'ray start --head --node-ip-address=ADDRESS "
    "--include-dashboard=false --disable-usage-stats'"
)


@dataclass(frozen=True)
class RemoteHost:
    """A host with an actor on it."""

    name: str
    address: str
    actor: Any

    def __str__(self) -> str:
        return f"host {self.name}"

    def ask(self, what: str, *arguments: Any, limit_s: float = ANSWER_S) -> Any:
        """What its actor answers; RankLost where it does not, or IobenchError where it fails at it."""
        import ray
        from ray import exceptions as of_ray

        try:
            return ray.get(getattr(self.actor, what).remote(*arguments), timeout=limit_s)
        except of_ray.RayTaskError as error:
            cause = error.cause or error
            kind = type(cause) if isinstance(cause, IobenchError) else IobenchError
            raise kind(f"{self}: {reason(cause)}") from None
        except of_ray.GetTimeoutError:
            raise RankLost(f"{self} gave no answer for {limit_s:g} s: it, or its network, is gone") from None
        except of_ray.RayError as error:
            why = "it, its network or Ray itself is gone"
            raise RankLost(f"Ray has lost {self}: {why} ({type(error).__name__})") from None


@contextmanager
def hosts_of(address: str, actor: type) -> Iterator[list[RemoteHost]]:
    """An actor of that class on each host of a cluster, until the block ends; this host is the first.

    Only the cluster is used, none is started. MissingDependency without Ray, RankLost where no cluster or
    host answers in time, RanksDiffer where a host has other software.
    """
    ray = _connected(address)
    try:
        nodes = _nodes(ray)
        _check_software(ray, nodes)
        with _group(ray, len(nodes)) as group:
            yield _placed(ray, group, nodes, actor)
    finally:
        _leave(ray)


def _connected(address: str) -> Any:
    for name, value in PATIENCE.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError:
        raise MissingDependency("several hosts by Ray need Ray: pip install 'iobench[ray]'") from None
    if (problem := _unreachable(address)) is not None:
        raise RankLost(f"--ray {address}: no Ray cluster answers there ({problem}); {SAFELY}")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        with _native_stderr_hidden():
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # noqa: BLE001 - Ray raises many kinds
        raise RankLost(f"--ray {address}: {_refused(ray, error)}") from None
    return ray


def _refused(ray: Any, error: Exception) -> str:
    """Why Ray does not take this process in, and what to do."""
    last = str(error.__cause__ or error).strip().splitlines()[-1]  # its cause holds a traceback
    if "AuthenticationError" in last:
        return (
            "the Ray cluster does not let this process in; set RAY_AUTH_MODE=token, and have the cluster's "
            "token in ~/.ray/auth_token"
        )
    said = reason(Exception(last.removeprefix("ray.exceptions.")))
    return f"what answers there is no Ray cluster of version {ray.__version__} ({said}); {SAFELY}"


@contextmanager
def _native_stderr_hidden() -> Iterator[None]:
    """Without what Ray's C++ writes to stderr, a line for each try, while errors are still to be raised."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _unreachable(address: str) -> str | None:
    """Why no connection to HOST:PORT can be made; None where one can."""
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal() and 0 < int(port) < PORTS):
        return "give its address as in 10.0.0.1:6379"
    try:
        socket.create_connection((host, int(port)), timeout=REACH_S).close()
    except (OSError, ValueError) as error:  # ValueError for a name that can be no host's
        return reason(error)
    return None


def _leave(ray: Any) -> None:
    """Leave the cluster; where it is gone, without waiting until Ray has noticed."""
    if not _within(LEAVING_S, ray.shutdown):
        atexit.unregister(ray.shutdown)


def _within(seconds: float, work: Callable[[], object]) -> bool:
    """Whether some work, done in a thread, has ended in time."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def _nodes(ray: Any) -> list[dict[str, Any]]:
    """The cluster's hosts that are alive, this process's own first."""
    here = ray.get_runtime_context().get_node_id()
    alive = [node for node in ray.nodes() if node["Alive"]]
    return sorted(alive, key=lambda node: (node["NodeID"] != here, node["NodeManagerAddress"]))


def _check_software(ray: Any, nodes: Sequence[dict[str, Any]]) -> None:
    """RanksDiffer where a host has another iobench, torch or NumPy than this one, or lacks it."""

    def versions() -> dict[str, str]:  # travels whole, so that a host needs nothing of ours to answer
        from importlib import metadata

        found = {}
        for name in ("iobench", "torch", "numpy"):
            try:
                found[name] = metadata.version(name)
            except metadata.PackageNotFoundError:
                found[name] = "none"
        return found

    own = versions()
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as Pinned

    asked = ray.remote(versions)
    for node in nodes:
        there = Pinned(node["NodeID"], soft=False)
        reference = asked.options(scheduling_strategy=there, num_cpus=0, max_retries=0).remote()
        try:
            found = ray.get(reference, timeout=PLACE_S)
        except ray.exceptions.RayError as error:
            raise RankLost(f"host {_name(node)} does not answer: {reason(error)}") from None
        for name, version in found.items():
            if version != own[name]:
                raise RanksDiffer(
                    f"host {_name(node)} has {name} {version}, {_name(nodes[0])} has {own[name]}; "
                    "install the same everywhere"
                )


@contextmanager
def _group(ray: Any, count: int) -> Iterator[Any]:
    """A placement group with a bundle on each of so many hosts."""
    from ray.util import placement_group, remove_placement_group

    group = placement_group([{"CPU": 1}] * count, strategy="STRICT_SPREAD")
    try:
        if not group.wait(PLACE_S):
            raise RankLost(
                f"Ray has not found a free processor on each of {count} hosts within {PLACE_S:g} s: see "
                "'ray status' for what else runs there"
            )
        yield group
    finally:
        _within(LEAVING_S, lambda: remove_placement_group(group))


def _placed(ray: Any, group: Any, nodes: Sequence[dict[str, Any]], actor: type) -> list[RemoteHost]:
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
