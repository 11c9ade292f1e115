"""The error of a server that cannot start."""

from __future__ import annotations


class StartupError(Exception):
    """The server cannot start. The message is shown to the operator as it is."""
