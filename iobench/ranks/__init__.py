"""Distributed runs: several processes that measure one case together."""
