"""Modules that several formats of other projects use."""
