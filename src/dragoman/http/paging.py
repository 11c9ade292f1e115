"""Pages of lists, as clients ask for them behind the question mark."""

from __future__ import annotations

from dragoman.errors import BadRequest
from dragoman.http.asgi import RequestContext

PAGE, MOST = 20, 100  # entries


def read_int(exchange: RequestContext, name: str, otherwise: int) -> int:
    said = exchange.query.get(name)
    if said is None:
        return otherwise
    if not (said.isascii() and said.removeprefix("-").isdigit() and len(said) < 19):
        raise BadRequest(f"`{name}` must be a whole number.", param=name, code="invalid_type")
    return int(said)


def read_paging(exchange: RequestContext, order: str = "desc") -> tuple[int, bool]:
    """How many entries a page has, and whether the newest come first."""
    limit = read_int(exchange, "limit", PAGE)
    if not 1 <= limit <= MOST:
        raise BadRequest(f"`limit` must be between 1 and {MOST}.", param="limit")
    order = exchange.query.get("order", order)
    if order not in ("asc", "desc"):
        raise BadRequest("`order` must be `asc` or `desc`.", param="order")
    return limit, order == "desc"
