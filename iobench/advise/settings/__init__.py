"""Settings of a user-defined DataLoader: candidates, and turns of the loop over it."""
