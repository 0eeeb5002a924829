"""Loaders as they are found, ill and healthy, and what `iobench diagnose` makes of them."""
