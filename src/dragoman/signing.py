"""Things that a client keeps for us and gives back: sealed, so that they cannot be made up.

A seal is a MAC under a key that all processes of one server share. It says that these bytes were
given out by this server, to this owner, for this purpose. What is sealed is packed, not hidden: it
holds only what its owner was told anyway.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import zlib

LARGEST = 16 << 20  # bytes that a sealed text may unpack to
SIZE = 16


class Signer:
    """Seals for one server."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def for_owner(self, owner: str) -> OwnerSigner:
        return OwnerSigner(self, owner)

    def sign(self, owner: str, purpose: str, data: bytes) -> str:
        """A signature of something that travels beside it."""
        return base64.b64encode(self._mac(owner, purpose, data)).decode()

    def verify(self, owner: str, purpose: str, data: bytes, signature: str) -> bool:
        expected = self.sign(owner, purpose, data)
        return hmac.compare_digest(expected.encode(), signature.encode())

    def pack(self, owner: str, purpose: str, data: bytes) -> str:
        """Something in a form that only `opened` reads."""
        packed = zlib.compress(data)
        return base64.b64encode(self._mac(owner, purpose, packed) + packed).decode()

    def unpack(self, owner: str, purpose: str, text: str) -> bytes | None:
        """What was sealed; None if that was not done here, for this owner and this purpose."""
        try:
            raw = base64.b64decode(text, validate=True)
        except ValueError:
            return None
        mac, packed = raw[:SIZE], raw[SIZE:]
        if not hmac.compare_digest(mac, self._mac(owner, purpose, packed)):
            return None
        unpacking = zlib.decompressobj()
        data = unpacking.decompress(packed, LARGEST)
        return None if unpacking.unconsumed_tail else data

    def _mac(self, owner: str, purpose: str, data: bytes) -> bytes:
        said = f"{purpose}\0{owner}\0".encode() + data
        return hmac.new(self._key, said, hashlib.sha256).digest()[:SIZE]


class OwnerSigner:
    """The seals of one owner."""

    def __init__(self, seal: Signer, owner: str) -> None:
        self._seal = seal
        self._owner = owner

    def sign(self, purpose: str, data: bytes) -> str:
        return self._seal.sign(self._owner, purpose, data)

    def verify(self, purpose: str, data: bytes, signature: str) -> bool:
        return self._seal.verify(self._owner, purpose, data, signature)

    def pack(self, purpose: str, data: bytes) -> str:
        return self._seal.pack(self._owner, purpose, data)

    def unpack(self, purpose: str, text: str) -> bytes | None:
        return self._seal.unpack(self._owner, purpose, text)
