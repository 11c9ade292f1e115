"""A tokenizer whose ids a test can read: every byte is a token."""

from __future__ import annotations

FIRST_SPECIAL = 256  # the id of the first special token


class RecordingTokenizer:
    """Encodes bytes, and has the special tokens that it is given."""

    def __init__(self, *specials: str, add_bos: bool = False, rstrip: str = "") -> None:
        self.specials = {text: FIRST_SPECIAL + number for number, text in enumerate(specials)}
        self.pieces = [bytes([byte]) for byte in range(256)] + [text.encode() for text in specials]
        self.bos_id = FIRST_SPECIAL if specials else None
        self.add_bos = add_bos
        self.variables = {"bos_token": specials[0], "eos_token": specials[1]} if specials else {}
        self.eos_ids = frozenset({self.specials[specials[1]]} if specials[1:] else ())
        self.rstrip = frozenset({self.specials[rstrip]} if rstrip else ())
        self.encoded_texts: list[str] = []

    async def encode(self, text: str) -> list[int]:
        self.encoded_texts.append(text)
        return list(text.encode("utf-8", "surrogatepass"))

    def decode(self, ids: list[int]) -> str:
        return b"".join(self.pieces[token] for token in ids).decode()
