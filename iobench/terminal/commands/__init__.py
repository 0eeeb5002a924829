"""What can be typed: one module per command or family of commands. Parse, call, print: nothing else."""
