"""Several processes that measure one case together: what torchrun starts, and how they agree."""
