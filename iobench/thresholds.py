"""What counts as warm, as cold, as long enough: for whoever measures and for whoever warns."""

ROUND_S = 0.2  # a shorter round measures the moment
COLD_LIMIT = 0.01  # residency above this is not cold
WARM_LIMIT = 0.99  # residency below this is not warm
BACKED_BYTES_PER_S = 3e9  # touching memory that is there is several times as fast
CACHED_BELOW = 1.3  # first p50 of single reads over the second from which on a layer below must have cached
