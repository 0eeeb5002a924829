"""Fault injection for iobench, by kind of fault; see `__main__`."""
