"""The signer that wire APIs need. The caller passes it in; see `dragoman.signing`."""

from __future__ import annotations

from typing import Protocol


class ContentPacker(Protocol):
    """Packs and signs content for the owner of a request. It is not encrypted."""

    def pack(self, purpose: str, data: bytes) -> str: ...

    def unpack(self, purpose: str, text: str) -> bytes | None: ...


class ContentSigner(ContentPacker, Protocol):
    """Also signs content that the owner of a request can read."""

    def sign(self, purpose: str, data: bytes) -> str: ...

    def verify(self, purpose: str, data: bytes, signature: str) -> bool: ...
