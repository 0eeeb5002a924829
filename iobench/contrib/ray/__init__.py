"""RayLoader: a DataLoader whose workers are Ray actors, on this machine or on others."""
