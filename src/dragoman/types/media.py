"""Pictures and sound that are checked, decoded and normalised, ready for an engine.

The stage `media` of the pipeline makes one `MediaItem` for each image and audio part of a chat
that the engine can read, and puts it in the part's `item`. What it promises to everything after it:

- `data` was written by us: a PNG of mode RGB without metadata, or a WAV of mono 16-bit samples.
  No byte of the client's file reaches an engine.
- The same picture or sound gives the same bytes, whatever wire API it came through, so `digest`
  identifies it in caches. The digest is ours; a client cannot choose it.
- The order of `Job.media` is the order of the parts in the conversation.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

MediaKind: TypeAlias = Literal["image", "audio"]


class MediaItem(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One picture or sound, normalised."""

    kind: MediaKind
    data: bytes  # a PNG or a WAV file
    digest: str  # SHA-256 of `data`, in hexadecimal
    width: int = 0  # of a picture, in pixels
    height: int = 0
    sample_rate: int = 0  # of a sound, in samples per second
    samples: int = 0  # of a sound

    @property
    def media_type(self) -> str:
        return "image/png" if self.kind == "image" else "audio/wav"

    @property
    def seconds(self) -> float:
        """How long a sound lasts."""
        return self.samples / self.sample_rate if self.sample_rate else 0.0
