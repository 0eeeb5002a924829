"""Stands before an installed package of this name, which a folder without this file would not."""
