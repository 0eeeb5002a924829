"""Experiments that check iobench itself; see README.md."""
