"""What a client wants to know about its request. Import the types from `dragoman.types`."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

TraceLevel: TypeAlias = Literal["brick", "step", "layer"]  # the finer, the more an engine reports


class ReportOptions(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a client wants to know about its request, besides the answer."""

    timings: bool = False  # tokens and milliseconds of prompt and answer
    timings_per_token: bool = False  # in every chunk of a stream, too
    trace: TraceLevel | None = None  # how long each stage took
    prompt: bool = False  # the rendered prompt
    prompt_ids: bool = False
    output: bool = False  # the text that the model generated, before it is parsed

    def __or__(self, other: ReportOptions) -> ReportOptions:
        """Return what either of them asks for."""
        if other == NO_REPORT:
            return self
        return ReportOptions(
            **{name: getattr(self, name) or getattr(other, name) for name in self.__struct_fields__}
        )


NO_REPORT = ReportOptions()
