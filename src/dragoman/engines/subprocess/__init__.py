"""Any engine, in a process of its own."""

from __future__ import annotations

from dragoman.engines.subprocess.engine import SubprocessEngine, Timing

__all__ = ["SubprocessEngine", "Timing"]
