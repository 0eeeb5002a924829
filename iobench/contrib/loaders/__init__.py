"""Loaders of other projects: a module each."""
