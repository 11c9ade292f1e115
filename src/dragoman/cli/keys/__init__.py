"""`dragoman keys`: API keys, for the operator of a server."""

from dragoman.cli.keys.command import add_arguments, run

__all__ = ["add_arguments", "run"]
