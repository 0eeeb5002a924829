"""What the machine does: page cache, memory, asynchronous reads, limits, counters, devices."""
