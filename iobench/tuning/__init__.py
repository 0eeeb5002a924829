"""Settings of somebody's own DataLoader: a race over them, whose winners are measured again."""
