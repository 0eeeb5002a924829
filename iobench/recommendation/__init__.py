"""Recommendation of a format, a loader and settings: a race, then final rounds of the finalists."""
