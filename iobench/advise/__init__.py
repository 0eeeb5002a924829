"""Advice: what to use or to change, and the measurements behind it."""
