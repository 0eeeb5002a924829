"""So what should I use: a race over formats, loaders and settings, whose winners are measured again."""
