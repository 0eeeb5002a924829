"""Somebody else's loader under the meter: what it costs, and what to do about that."""
