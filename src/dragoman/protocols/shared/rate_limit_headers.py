"""Headers that tell a client what is left of its limits, as OpenAI writes them."""

from __future__ import annotations

from collections.abc import Iterator

from dragoman.types.limits import RateLimit, RateLimitStatus


def encode_rate_limits(status: RateLimitStatus) -> list[tuple[bytes, bytes]]:
    """Encode limits as `x-ratelimit-…` headers."""
    return [
        (f"x-ratelimit-{field}-{name}".encode(), value.encode())
        for name, limit in list_limits(status)
        for field, value in (
            ("limit", str(limit.limit)),
            ("remaining", str(limit.remaining)),
            ("reset", format_duration(limit.reset)),
        )
    ]


def list_limits(status: RateLimitStatus) -> Iterator[tuple[str, RateLimit]]:
    """Yield the limits that there are, with their names."""
    for name in status.__struct_fields__:
        limit = getattr(status, name)
        if limit is not None:
            yield name, limit


def format_duration(seconds: float) -> str:
    """Write a duration as OpenAI does: `20ms`, `8.64s`, `6m0s`."""
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    minutes, rest = divmod(round(seconds, 2), 60)
    hours, minutes = divmod(int(minutes), 60)
    text = f"{rest:.2f}".rstrip("0").rstrip(".") + "s"
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text
