"""Commands, one module per command or family of commands: parse, call, print."""
