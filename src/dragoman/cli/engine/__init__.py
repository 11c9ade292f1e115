"""`dragoman engine`: install engines that need an environment of their own."""

from dragoman.cli.engine.command import add_parser, run

__all__ = ["add_parser", "run"]
