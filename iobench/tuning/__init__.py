"""Tuning a user's own DataLoader: a race over its settings, then final rounds of the fastest."""
