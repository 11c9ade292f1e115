"""What Dragoman's own tests stand on, shipped for yours.

- `ScriptedEngine`, `Reply`, `ByteTokenizer`: an engine that says what you tell it to, and goes wrong
  where you tell it to.
- `check_engine`: what every engine must keep to; run it over your own.
- `check_format`: what the output parser promises; run it over a format and texts of your own.
- `every_cut`: ways of cutting a text, for proving that a reader does not care.
"""

from __future__ import annotations

from dragoman.testing.byte_tokenizer import ByteTokenizer
from dragoman.testing.conformance import CheckResult, NotConformant, check_engine
from dragoman.testing.cuts import every_cut
from dragoman.testing.format_checks import check_format
from dragoman.testing.replies import Reply
from dragoman.testing.scripted import ScriptedEngine

__all__ = [
    "ByteTokenizer",
    "CheckResult",
    "NotConformant",
    "Reply",
    "ScriptedEngine",
    "check_engine",
    "check_format",
    "every_cut",
]
