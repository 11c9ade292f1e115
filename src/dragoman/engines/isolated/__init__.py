"""Any engine, in a process of its own."""

from __future__ import annotations

from dragoman.engines.isolated.parent import Isolated, Timing

__all__ = ["Isolated", "Timing"]
