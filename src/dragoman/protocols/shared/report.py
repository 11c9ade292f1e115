"""Reports about a request: the fields that ask for one, and how it is added to the answer.

A report is a set of fields beside the answer (`timings`, a trace, `debug`). The clients of all wire
APIs ignore fields that they do not know.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, cast, get_args

import msgspec

from dragoman.errors import InvalidValue
from dragoman.types import Json, ReportOptions, TraceLevel

# Returns the report; called when the answer is complete.
MakeReport: TypeAlias = Callable[[], dict[str, Json]]


# True, or the level of the trace.
Trace: TypeAlias = bool | str | None
_encode = msgspec.json.Encoder().encode


def decode_report(
    timings: bool | None, trace: Trace, timings_per_token: bool | None = None
) -> ReportOptions:
    """Return what the fields of a request ask for."""
    level: TraceLevel | None = "step" if trace else None
    if isinstance(trace, str):
        if trace not in get_args(TraceLevel):
            known = ", ".join(f"`{name}`" for name in get_args(TraceLevel))
            raise InvalidValue(f"`trace` must be true, false or one of {known}.", param="trace")
        level = cast(TraceLevel, trace)
    return ReportOptions(
        timings=bool(timings), timings_per_token=bool(timings_per_token), trace=level
    )


def add_report(body: bytes, report: dict[str, Json]) -> bytes:
    """Add a report to an object that is encoded already."""
    return body[:-1] + b"," + _encode(report)[1:] if report else body


def add_report_to_frame(frame: bytes, report: dict[str, Json]) -> bytes:
    """Add a report to the object in a frame of a stream."""
    return add_report(frame[:-2], report) + b"\n\n"
