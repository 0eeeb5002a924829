"""Ranks as threads of one process, which meet in memory."""

import threading
from concurrent.futures import ThreadPoolExecutor

import iobench
from iobench import RunOptions
from iobench.base.errors import (
    RankLost,
)
from iobench.ranks.crew import RankCrew
from iobench.ranks.group import Group
from iobench.ranks.place import Place
from iobench.ranks.rank import obey

WAIT_S = 60.0


class _Table:
    """Where threads meet."""

    def __init__(self, count):
        self.said = [None] * count
        self.gate = threading.Barrier(count)


class ThreadGroup(Group):
    """A rank that is a thread; `hosts` says on which host each is."""

    def __init__(self, table, rank, hosts):
        places, seen = [], {}
        for number, host in enumerate(hosts):
            local = seen[host] = seen.get(host, -1) + 1
            node = list(dict.fromkeys(hosts)).index(host)
            places.append(Place(number, len(hosts), local, hosts.count(host), node, host))
        self.places, self.place, self.table = places, places[rank], table
        self.shown = None

    def gather(self, value):
        self.table.said[self.place.rank] = value
        self.barrier()
        found = list(self.table.said)
        self.barrier()
        return found

    def barrier(self):
        try:
            self.table.gate.wait(WAIT_S)
        except threading.BrokenBarrierError as error:
            raise RankLost("a thread has left") from error

    def show(self, progress):
        self.shown = progress

    def check(self):
        pass

    def while_waiting(self, check_interrupt):
        pass

    def close(self):
        self.table.gate.abort()


def over_threads(call, hosts=("a", "a")):
    """What `call(group)` returns in each of these ranks; raises what the first of them raises."""
    table = _Table(len(hosts))

    def one(rank):
        group = ThreadGroup(table, rank, hosts)
        try:
            return call(group)
        except BaseException:
            group.close()
            raise

    with ThreadPoolExecutor(len(hosts)) as pool:
        futures = [pool.submit(one, rank) for rank in range(len(hosts))]
    errors = [future.exception() for future in futures]
    for error in sorted(filter(None, errors), key=lambda error: isinstance(error, RankLost)):
        raise error
    return [future.result() for future in futures]


def run_over(manifest, out, hosts=("a", "a"), variants=("npy",), loaders=("native",), rounds=1, **more):
    """The run that rank 0 made, with the others at its service."""
    chosen = {"device": ("cpu",), "limits": False, **more}
    options = RunOptions(tuple(variants), tuple(loaders), rounds=str(rounds), **chosen)

    def one(group):
        if group.place.rank:
            return obey(group)
        crew = RankCrew(group)
        try:
            return iobench.run(manifest, options, out=out, crew=crew)
        finally:
            crew.stop()

    return over_threads(one, hosts)[0]
