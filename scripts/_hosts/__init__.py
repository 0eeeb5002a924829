"""`scripts/hosts`: simulated hosts made of Linux namespaces, runs over them, and faults."""
