"""One file per command, which parses, calls and prints, and files for options that are shared."""
