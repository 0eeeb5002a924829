"""What counts as warm, as cold, as long enough: for whoever measures and for whoever warns."""

ROUND_S = 0.2  # a shorter round measures the moment
COLD_LIMIT = 0.01  # residency above this is not cold
WARM_LIMIT = 0.99  # residency below this is not warm
OPENING_PART = 0.2  # of the data, read before the clock starts: an epoch without these is not cold
BACKED_BYTES_PER_S = 3e9  # touching memory that is there is several times as fast
OTHERS_PROCESSORS = (
    0.10  # of the processors' time: beside 6 % identical runs were alike here, beside 50 % half as fast
)
OTHERS_DISK_BYTES_PER_S = 50e6  # that other processes read from the same disk: 5 % of what one gives here
OTHERS_TURNS = 0.2  # of the turns with other work: fewer do not move a median
CROWDED = 0.75  # of the processors' time, used by others: who waits then may wait for a core
STEAL = 0.01  # of the processors' time, that a hypervisor gave to others
MEMORY_STALLED = 0.05  # of the time, in which tasks waited for memory to be freed
CACHED_BELOW = 1.3  # first p50 of single reads over the second from which on a layer below must have cached
