"""The priority of everything that the current task does.

Requests choose a priority (`service_tier`); the lines of a batch have the lowest one, whatever they
choose. It is in a context variable, so that the pipeline treats them like all other requests.
"""

from __future__ import annotations

from contextvars import ContextVar

from dragoman.types.limits import PRIORITIES, Priority

_highest: ContextVar[Priority] = ContextVar("highest_priority", default=PRIORITIES[0])


def limit_priority(highest: Priority) -> None:
    """Limit the priority of everything that this task does from now on."""
    _highest.set(highest)


def get_priority(wanted: Priority = PRIORITIES[0]) -> Priority:
    """Return the wanted priority, or the limit of the current task if that is lower."""
    return max(wanted, _highest.get(), key=PRIORITIES.index)
