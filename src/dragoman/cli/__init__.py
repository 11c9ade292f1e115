"""The command line: one module for each command, and `main` with the parser."""
