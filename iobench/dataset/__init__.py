"""Datasets on disk: sources, what prepare writes, what the manifest says of it, and the proof."""
