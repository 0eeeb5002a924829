"""Cases, measured: what is compared, in which turns, by which process, and how long it took."""
