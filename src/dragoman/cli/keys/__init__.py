"""`dragoman keys`: API keys, for the operator of a server."""

from dragoman.cli.keys.command import add_parser, run

__all__ = ["add_parser", "run"]
