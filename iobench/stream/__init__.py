"""StreamLoader: threads read batches into reused memory and keep disk, memory and device busy."""
