"""Signatures for content that a client stores for this server and sends back.

A signature is a MAC under a key that all processes of one server share. It proves that this server
issued these bytes to this owner for this purpose, so a client can neither invent nor alter them,
nor use them with another API key or in another place.

Packed content is signed and compressed, not encrypted: anyone who has it can read it. It holds only
what its owner has received anyway. Signatures do not expire, and the same content can be sent back
any number of times.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import zlib

MAX_UNPACKED = 16 << 20  # bytes
MAC_SIZE = 16  # bytes


class Signer:
    """Signs content of one server, for any owner."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def for_owner(self, owner: str) -> OwnerSigner:
        return OwnerSigner(self, owner)

    def sign(self, owner: str, purpose: str, data: bytes) -> str:
        """Return a signature that is sent beside the data."""
        return base64.b64encode(self._compute_mac(owner, purpose, data)).decode()

    def verify(self, owner: str, purpose: str, data: bytes, signature: str) -> bool:
        expected = self.sign(owner, purpose, data)
        return hmac.compare_digest(expected.encode(), signature.encode())

    def pack(self, owner: str, purpose: str, data: bytes) -> str:
        """Return the data and its signature as one text, for `unpack`."""
        compressed = zlib.compress(data)
        return base64.b64encode(self._compute_mac(owner, purpose, compressed) + compressed).decode()

    def unpack(self, owner: str, purpose: str, text: str) -> bytes | None:
        """Return packed data; None if this server did not pack it for this owner and purpose."""
        try:
            raw = base64.b64decode(text, validate=True)
        except ValueError:
            return None
        mac, compressed = raw[:MAC_SIZE], raw[MAC_SIZE:]
        if not hmac.compare_digest(mac, self._compute_mac(owner, purpose, compressed)):
            return None
        decompressor = zlib.decompressobj()
        data = decompressor.decompress(compressed, MAX_UNPACKED)
        return None if decompressor.unconsumed_tail else data

    def _compute_mac(self, owner: str, purpose: str, data: bytes) -> bytes:
        message = f"{purpose}\0{owner}\0".encode() + data
        return hmac.new(self._key, message, hashlib.sha256).digest()[:MAC_SIZE]


class OwnerSigner:
    """Signs content for one owner."""

    def __init__(self, signer: Signer, owner: str) -> None:
        self._signer = signer
        self._owner = owner

    def sign(self, purpose: str, data: bytes) -> str:
        return self._signer.sign(self._owner, purpose, data)

    def verify(self, purpose: str, data: bytes, signature: str) -> bool:
        return self._signer.verify(self._owner, purpose, data, signature)

    def pack(self, purpose: str, data: bytes) -> str:
        return self._signer.pack(self._owner, purpose, data)

    def unpack(self, purpose: str, text: str) -> bytes | None:
        return self._signer.unpack(self._owner, purpose, text)
