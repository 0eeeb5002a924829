"""Checks of a user-defined loader: figures of a loop, profiles, and advice."""
