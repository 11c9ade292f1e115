"""Query fields that select a page of a list."""

from __future__ import annotations

import re

from dragoman.errors import BadRequest, InvalidType
from dragoman.http.asgi import RequestContext

DEFAULT_LIMIT, MAX_LIMIT = 20, 100
_INTEGER = re.compile(r"(-?[0-9]{1,18})(?:\.0{1,18})?")  # also as a whole float


def read_int(request: RequestContext, name: str, default: int) -> int:
    text = request.query.get(name)
    if text is None:
        return default
    match = _INTEGER.fullmatch(text)
    if match is None:
        raise InvalidType(f"`{name}` must be an integer.", param=name)
    return int(match[1])


def read_paging(
    request: RequestContext,
    default_order: str = "desc",
    *,
    default: int = DEFAULT_LIMIT,
    maximum: int = MAX_LIMIT,
) -> tuple[int, bool]:
    """Return the number of entries on a page, and whether the newest come first."""
    limit = read_int(request, "limit", default)
    if not 1 <= limit <= maximum:
        raise BadRequest(f"`limit` must be between 1 and {maximum}.", param="limit")
    order = request.query.get("order", default_order)
    if order not in ("asc", "desc"):
        raise BadRequest("`order` must be `asc` or `desc`.", param="order")
    return limit, order == "desc"
