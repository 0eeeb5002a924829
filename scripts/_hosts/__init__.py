"""What `scripts/hosts` does: machines made of Linux namespaces, the story of the README, and faults."""
