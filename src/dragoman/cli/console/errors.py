"""Errors of commands."""

from __future__ import annotations


class CommandFailed(Exception):
    """A command cannot do what was asked. The message is shown as it is."""
