"""Thresholds shared by the code that measures and the code that warns."""

ROUND_S = 0.2  # shortest round: a shorter one measures momentary disturbances
COLD_LIMIT = 0.01  # residency above this is not cold
WARM_LIMIT = 0.99  # residency below this is not warm
LARGER_THAN_MEMORY = "nothing was read: the files are larger than the memory"  # method of a warm round
PART_WARMED = "by earlier rounds: the files hold more than the dataset"  # likewise
OPENING_SHARE = 0.2  # of the data, read before the clock starts: beyond it an epoch is not cold
BACKED_BYTES_PER_S = 3e9  # touching resident memory is several times faster than this
# Share of all processors' time used by other processes. Measured here: with 6 % identical runs agreed,
# with 50 % they ran half as fast.
BACKGROUND_CPU = 0.10
BACKGROUND_DISK_BYTES_PER_S = 50e6  # read by other processes from the same disk: 5 % of what ours reads
BACKGROUND_ROUNDS = 0.2  # share of rounds under background load: fewer do not move a median
CPU_CONTENDED = 0.75  # share of processor time used by other processes: waiting may then be for a core
STEAL = 0.01  # share of processor time that the hypervisor gave to other machines
MEMORY_STALLED = 0.05  # share of time in which tasks waited for memory to be freed
LOWER_CACHE_SPEEDUP = 1.3  # first p50 of single reads over the second: from here on a lower layer caches
