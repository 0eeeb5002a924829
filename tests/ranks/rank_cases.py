"""Ranks as threads of one process, with collectives in memory."""

import threading
from concurrent.futures import ThreadPoolExecutor

import iobench
from iobench import RunOptions
from iobench.base.errors import RankLost
from iobench.host.rank_info import RankInfo
from iobench.ranks.distributed_backend import DistributedBackend
from iobench.ranks.group import RankGroup
from iobench.ranks.rank import worker_loop

WAIT_S = 60.0


class _Exchange:
    """Shared values and a barrier of the threads."""

    def __init__(self, count):
        self.values = [None] * count
        self.gate = threading.Barrier(count)


class ThreadGroup(RankGroup):
    """A rank that is a thread; `hosts` says on which host each is."""

    alive = True

    def __init__(self, exchange, rank, hosts):
        ranks, seen = [], {}
        for number, host in enumerate(hosts):
            local = seen[host] = seen.get(host, -1) + 1
            node = list(dict.fromkeys(hosts)).index(host)
            ranks.append(RankInfo(number, len(hosts), local, node, host))
        self.ranks, self.info, self.exchange = ranks, ranks[rank], exchange
        self.progress = None

    def all_gather(self, value):
        self.exchange.values[self.info.rank] = value
        self.barrier()
        values = list(self.exchange.values)
        self.barrier()
        return values

    def barrier(self):
        try:
            self.exchange.gate.wait(WAIT_S)
        except threading.BrokenBarrierError as error:
            raise RankLost("a thread has left") from error

    def report_progress(self, progress):
        self.progress = progress

    def check(self):
        pass

    def poll_while_waiting(self, check_interrupt):
        pass

    def close(self):
        self.exchange.gate.abort()


def over_threads(call, hosts=("a", "a")):
    """Return `call(group)` of each rank; raises what the first of them raises."""
    exchange = _Exchange(len(hosts))

    def one(rank):
        group = ThreadGroup(exchange, rank, hosts)
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
    """Return the run of rank 0, with the other ranks in their worker loops."""
    chosen = {"device": ("cpu",), "limits": False, **more}
    options = RunOptions(tuple(variants), tuple(loaders), rounds=str(rounds), **chosen)

    def one(group):
        if group.info.rank:
            return worker_loop(group)
        backend = DistributedBackend(group)
        try:
            return iobench.run(manifest, options, out=out, backend=backend)
        finally:
            backend.stop()

    return over_threads(one, hosts)[0]
