"""Formats of other projects: a module or a folder each; `shared` holds what several of them use."""
