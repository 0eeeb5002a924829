"""Python as in an environment that has the core dependencies of iobench alone; see `sitecustomize`."""
