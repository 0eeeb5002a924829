"""Shared by every package: errors, text, units and thresholds. It imports no other package of iobench."""

INTERRUPTED = 130  # exit code after Ctrl-C, as in a shell: 128 + the signal's number
