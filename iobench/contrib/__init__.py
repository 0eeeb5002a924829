"""Formats and loaders of other projects, and RayLoader, found through entry points."""
