"""Which on-disk format feeds your training fastest, and how far that is from the hardware."""
