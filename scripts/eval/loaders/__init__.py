"""Accuracy of `iobench diagnose` over loaders with known problems and over good ones."""
