"""Checks of `scripts/gpu_check`: by commands of iobench, and by functions in child processes."""
