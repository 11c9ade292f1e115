"""Builds the request of a response from its items, off the event loop if there is much to do."""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.protocols import responses
from dragoman.protocols.responses import DecodedRequest
from dragoman.protocols.responses.types import Item
from dragoman.protocols.shared.signer import ContentPacker
from dragoman.types import Request, Tool
from dragoman.types.worker_threads import run_in_worker

MAX_INLINE_ITEMS = 100
MAX_INLINE_PACKED = 50_000  # characters of packed content, which is verified and unpacked


async def build_request(
    decoded: DecodedRequest,
    history: Sequence[Item],
    *,
    owner: str,
    packer: ContentPacker,
    remote: Sequence[Tool] = (),
) -> Request:
    """Build the `Request`; references among the items have been resolved."""
    if not _is_large([*history, *decoded.items]):
        return responses.to_request(decoded, history, owner=owner, packer=packer, remote=remote)
    return await run_in_worker(
        responses.to_request, decoded, history, owner=owner, packer=packer, remote=remote
    )


def _is_large(items: Sequence[Item]) -> bool:
    packed = sum(len(item.get("encrypted_content") or "") for item in items[:MAX_INLINE_ITEMS])
    return len(items) > MAX_INLINE_ITEMS or packed > MAX_INLINE_PACKED
