"""Diagnosis of a user's own loader: what it costs, and what to change."""
