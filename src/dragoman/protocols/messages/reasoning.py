"""Sign reasoning that goes to a client, and verify it when the client sends it back.

Reasoning is sent with a signature and comes back with it in later turns. Reasoning that this server
did not send to this client is not shown to the model. A client may have reasoning omitted; then
the signature contains the packed reasoning itself, and comes back with an empty block.
"""

from __future__ import annotations

from dragoman.protocols.shared.signer import ContentSigner

SHOWN = "thinking"
OMITTED = "thinking left out"  # part of the signature: existing signatures depend on it


def sign_reasoning(text: str, signer: ContentSigner, *, omitted: bool) -> str:
    data = text.encode()
    return signer.pack(OMITTED, data) if omitted else signer.sign(SHOWN, data)


def verify_reasoning(text: str, signature: str, signer: ContentSigner) -> str | None:
    """Return the reasoning that a client sent back; None if this server did not sign it."""
    if text:
        return text if signer.verify(SHOWN, text.encode(), signature) else None
    data = signer.unpack(OMITTED, signature)
    return None if data is None else data.decode()
