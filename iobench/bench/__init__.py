"""Benchmark runs: cases, the plan of rounds, executors, content checks, limits and records."""
