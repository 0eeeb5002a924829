"""The machine: page cache, memory, asynchronous reads, processes, hardware limits, counters, devices."""
