"""`dragoman engine`: install engines that need an environment of their own."""

from dragoman.cli.engine.command import add_arguments, run

__all__ = ["add_arguments", "run"]
