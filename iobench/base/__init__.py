"""Shared by every package: errors, text, units and thresholds. It imports no other package of iobench."""
