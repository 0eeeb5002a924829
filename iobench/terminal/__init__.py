"""The command line: the only room that parses arguments and prints."""
