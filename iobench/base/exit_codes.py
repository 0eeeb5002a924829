"""Exit codes that are no errors' own. This module imports nothing, so that Ctrl-C is handled at once."""

INTERRUPTED = 130  # exit code after Ctrl-C, as in a shell: 128 + the signal's number
