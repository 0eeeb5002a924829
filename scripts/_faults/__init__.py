"""Injected faults, by kind; see `__main__`."""
