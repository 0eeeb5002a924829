"""Hosts of a Ray cluster: an actor on each, this process's own host first, with timeouts for all calls."""

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

from iobench.base.errors import IobenchError, RankLost, RanksDiffer, needing
from iobench.base.standard_streams import native_stderr_hidden
from iobench.base.text import reason

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
        nodes = _nodes(ray)
        _check_software(ray, nodes)
        with _group(ray, len(nodes)) as group:
            yield _placed(ray, group, nodes, actor)
    finally:
        _leave(ray)


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


def _leave(ray: Any) -> None:
    """Leave the cluster; if it is gone, do not wait until Ray has noticed."""
    if not _within(LEAVING_S, ray.shutdown):
        atexit.unregister(ray.shutdown)


def _within(seconds: float, work: Callable[[], object]) -> bool:
    """Run work in a thread and return whether it ended in time."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def _nodes(ray: Any) -> list[dict[str, Any]]:
    """Return the cluster's hosts that are alive, this process's own first."""
    here = ray.get_runtime_context().get_node_id()
    alive = [node for node in ray.nodes() if node["Alive"]]
    return sorted(alive, key=lambda node: (node["NodeID"] != here, node["NodeManagerAddress"]))


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
