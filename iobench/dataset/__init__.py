"""Datasets on disk: sources, preparing and adding data, manifests, checksums and verification."""
