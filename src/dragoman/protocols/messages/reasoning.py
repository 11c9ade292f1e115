"""Thoughts on their way to a client and back.

A thought is told with a signature, and comes back with it in later turns. One that was not told by
this server, to this client, is not shown to the model. A client may have thoughts left out; then
the signature holds the thought itself, and what comes back is an empty thought with a signature.
"""

from __future__ import annotations

from typing import Protocol

TOLD = "thinking"
LEFT_OUT = "thinking left out"


class Signing(Protocol):
    """Signs and seals for the client of a request; see `dragoman.seal`."""

    def sign(self, purpose: str, data: bytes) -> str: ...

    def verify(self, purpose: str, data: bytes, signature: str) -> bool: ...

    def pack(self, purpose: str, data: bytes) -> str: ...

    def unpack(self, purpose: str, text: str) -> bytes | None: ...


def signature(thought: str, signing: Signing, *, left_out: bool) -> str:
    data = thought.encode()
    return signing.pack(LEFT_OUT, data) if left_out else signing.sign(TOLD, data)


def recalled(thought: str, signature: str, signing: Signing) -> str | None:
    """The thought that a client gave back; None if it is not one of ours."""
    if thought:
        return thought if signing.verify(TOLD, thought.encode(), signature) else None
    data = signing.unpack(LEFT_OUT, signature)
    return None if data is None else data.decode()
