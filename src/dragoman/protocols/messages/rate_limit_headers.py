"""Headers that tell a client what is left of its limits, as Anthropic writes them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from dragoman.protocols.shared.rate_limit_headers import list_limits
from dragoman.types.limits import RateLimitStatus


def encode_rate_limits(status: RateLimitStatus) -> list[tuple[bytes, bytes]]:
    """Encode limits as `anthropic-ratelimit-…` headers; the reset is a time."""
    now = datetime.now(UTC)
    return [
        (f"anthropic-ratelimit-{name}-{field}".encode(), value.encode())
        for name, limit in list_limits(status)
        for field, value in (
            ("limit", str(limit.limit)),
            ("remaining", str(limit.remaining)),
            ("reset", _format_time(now + timedelta(seconds=limit.reset))),
        )
    ]


def _format_time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
