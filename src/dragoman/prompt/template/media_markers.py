"""Keeps track of where pictures and sound are in a rendered prompt.

While a conversation is rendered, a media item is a marker in the text of its turn: its digest
between two code points that no other text contains (`special_tokens` removes them from client
text). Templates have two conventions for media, and which one a template has for each role is
found by rendering probes (`find_placeholders`):

- **Parts.** The content is a list in which `{"type": "image"}` stands for a picture, and the
  template writes a placeholder for it, such as `<|vision_start|><|image_pad|><|vision_end|>`. The
  markers in the texts of such roles become parts, and afterwards the placeholders that the template
  wrote become markers again, in order. So an engine that adds tokens around a picture itself adds
  them once, and the picture is where the template puts it.
- **Text.** The content is a text, and the marker stays where the client put the picture.

If the placeholders in a prompt are not as many as the items, the conversation is rendered by the
second convention; if the markers are not all there then, the template cannot write them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from dragoman.errors import Unsupported
from dragoman.prompt.pieces import Piece, PromptPieces
from dragoman.prompt.special_tokens import MEDIA, MixedText
from dragoman.prompt.template.capabilities import (
    TEXT_PART,
    CapabilityProbe,
    TemplateMessage,
    probe_capabilities,
)
from dragoman.prompt.template.template import compile_template
from dragoman.types import Chat, Json, MediaItem
from dragoman.types.media_ids import make_media_ids

_MARKER = re.compile(f"{MEDIA}([0-9a-f]+){MEDIA}")
_WRITTEN = r"\\[uU][fF][dD][dD]3"  # the code point as `tojson` and `repr` write it
_WRITTEN_MARKER = re.compile(f"{_WRITTEN}([0-9a-f]+?){_WRITTEN}")
# parts that stand for a media item in the content of a message, the usual one first
PART_FORMS: dict[str, tuple[Json, ...]] = {
    "image": (
        {"type": "image"},
        {"type": "image_url", "image_url": {"url": ""}},
    ),
    "audio": (
        {"type": "audio"},
        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
        {"type": "audio_url", "audio_url": {"url": ""}},
    ),
}
PART_WORDS = frozenset(part["type"] for forms in PART_FORMS.values() for part in forms)
ROLES = ("user", "tool")


class Placeholder(Struct, frozen=True):
    """What a template writes for an item of a kind in a message of a role."""

    role: str
    kind: str
    part: Json  # in the content of the message
    text: str  # in the prompt


def make_marker(item: MediaItem) -> MixedText:
    """Return the text that stands for an item until the prompt is rendered."""
    return MixedText([(f"{MEDIA}{item.digest}{MEDIA}", True)])


def find_items(chat: Chat) -> dict[str, MediaItem]:
    """Return the media that the engine will see, by digest."""
    return {part.item.digest: part.item for _, part in chat.media if part.item is not None}


def count_items(chat: Chat) -> int:
    return sum(part.item is not None for _, part in chat.media)


# Placeholders


@lru_cache(maxsize=64)
def find_placeholders(source: str) -> tuple[Placeholder, ...]:
    """Find what a template writes for media, by rendering probes."""
    template = compile_template(source)
    if not PART_WORDS & template.facts.words:
        return ()
    capabilities = probe_capabilities(source)
    if not capabilities.renders:
        return ()
    probe = CapabilityProbe(template)
    roles = ROLES if capabilities.tool_results_rendered else ROLES[:1]
    found = (_probe_role(probe, role, kind) for role in roles for kind in PART_FORMS)
    return tuple(placeholder for placeholder in found if placeholder is not None)


def _probe_role(probe: CapabilityProbe, role: str, kind: str) -> Placeholder | None:
    for part in PART_FORMS[kind]:
        text = _probe_part(probe, role, part)
        if text:
            return Placeholder(role, kind, part, text)
    return None


def _probe_part(probe: CapabilityProbe, role: str, part: Json) -> str:
    """Return what the template writes for a part, if it writes the same for every such part."""
    first, second = {"type": "text", "text": "zqfirst"}, {"type": "text", "text": "zqsecond"}
    plain = _render_content(probe, role, [first, second])
    with_one = _render_content(probe, role, [first, part, second])
    with_two = _render_content(probe, role, [part, first, part, second])
    texts = (plain, with_one, with_two)
    if any(TEXT_PART.search(text) or "zqsecond" not in text for text in texts):
        return ""
    written = _find_insertion(plain, with_one).strip()
    if not written or "zq" in written or with_one.count(written) != 1:
        return ""
    return written if plain.count(written) == 0 and with_two.count(written) == 2 else ""


def _render_content(probe: CapabilityProbe, role: str, content: list[Json]) -> str:
    message: TemplateMessage = {"role": role, "content": content}
    messages = [message]
    if role == "tool":
        call = {"name": "zqcalled", "arguments": {"zqkey": "zqvalue"}}
        calls = [{"type": "function", "id": "zqcall001", "function": call}]
        message |= {"name": "zqcalled", "tool_call_id": "zqcall001"}
        asked = probe.make_message("user", "zquser")
        messages = [asked, {"role": "assistant", "content": "", "tool_calls": calls}, message]
    return probe.render(messages) or ""


def _find_insertion(before: str, after: str) -> str:
    """Return what the second text has in addition to the first."""
    start, most = 0, min(len(before), len(after))
    while start < most and before[start] == after[start]:
        start += 1
    end = 0
    while end < most - start and before[-1 - end] == after[-1 - end]:
        end += 1
    return after[start : len(after) - end]


# Before and after rendering


class MediaWriter:
    """Puts the media of one chat into its messages, and finds them in the rendered prompt."""

    def __init__(self, chat: Chat, placeholders: Sequence[Placeholder]) -> None:
        self._items = find_items(chat)
        self._count = count_items(chat)
        self._by_role = {(entry.role, entry.kind): entry for entry in placeholders}
        self._written: list[str] = []  # digests of the items that are parts, in order

    @property
    def has_media(self) -> bool:
        return bool(self._items)

    @property
    def has_parts(self) -> bool:
        """Whether items are parts of the messages, which a template may reject."""
        return bool(self._written)

    def write_parts(self, message: TemplateMessage) -> TemplateMessage:
        """Return a message whose markers are parts, if the template writes those for its role."""
        content = message.get("content")
        if isinstance(content, str) and MEDIA in content:
            parts = [*self._split(content, message["role"])]
            is_text = all(part["type"] == "text" for part in parts)
            return message if is_text else message | {"content": parts}
        if isinstance(content, list):
            parts = [
                part
                for entry in content
                for part in (
                    self._split(entry["text"], message["role"])
                    if MEDIA in entry.get("text", "")
                    else [entry]
                )
            ]
            return message | {"content": parts}
        return message

    def _split(self, text: str, role: str) -> Iterator[Json]:
        """Yield the parts of a text with markers; those without a placeholder stay in the text."""
        waiting: list[tuple[str, bool]] = []
        for piece, is_ours in text.parts if isinstance(text, MixedText) else [(text, False)]:
            found = _MARKER.fullmatch(piece) if is_ours else None
            item = None if found is None else self._items.get(found[1])
            placeholder = None if item is None else self._by_role.get((role, item.kind))
            if found is None or placeholder is None:
                waiting.append((piece, is_ours))
                continue
            if waiting:
                yield {"type": "text", "text": MixedText(waiting)}
            waiting = []
            self._written.append(found[1])
            yield placeholder.part
        if waiting:
            yield {"type": "text", "text": MixedText(waiting)}

    def restore_markers(self, text: str) -> str | None:
        """Put markers in place of the placeholders; None if some item is not in the prompt."""
        text = _WRITTEN_MARKER.sub(rf"{MEDIA}\1{MEDIA}", text)
        if self._written:
            texts = {entry.text for entry in self._by_role.values()}
            pattern = re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))))
            if len(pattern.findall(text)) != len(self._written):
                return None
            digests = iter(self._written)
            text = pattern.sub(lambda _: f"{MEDIA}{next(digests)}{MEDIA}", text)
        return text if len(_MARKER.findall(text)) == self._count else None


def check_no_media(chat: Chat) -> None:
    """Reject media for a model whose prompts are text."""
    if chat.media and find_items(chat):
        raise Unsupported(
            "Pictures and sound cannot be placed: this model's tokenizer is unknown.",
            param="messages",
        )


def insert_media(
    prompt: PromptPieces, chat: Chat, break_text: Callable[[str], str] | None
) -> tuple[PromptPieces, tuple[MediaItem, ...], bool]:
    """Put the ids of media in place of their markers; return the items in their order, too.

    `break_text` is for engines that read such prompts as text: it changes a plain text that spells
    special tokens. The flag says whether it changed any.
    """
    items = find_items(chat)
    if not items:
        return prompt, (), False
    plain = prompt.pieces
    if break_text is not None:
        plain = [
            break_text(piece) if isinstance(piece, str) and not index % 2 else piece
            for index, piece in enumerate(prompt.pieces)
        ]
    pieces, media = _insert_ids(plain, items)
    start = prompt.answer_start
    if start is not None:
        start = len(_insert_ids(plain[:start], items)[0])
    changed = replace(prompt, pieces=pieces, answer_start=start)
    return changed, media, plain != prompt.pieces


def _insert_ids(
    pieces: Iterable[Piece], items: dict[str, MediaItem]
) -> tuple[list[Piece], tuple[MediaItem, ...]]:
    """Replace the markers in plain text by the ids of their items, which are returned in order."""
    result: list[Piece] = []
    media: list[MediaItem] = []
    for piece in pieces:
        if not isinstance(piece, str) or MEDIA not in piece:
            result.append(piece)
            continue
        for index, part in enumerate(_MARKER.split(piece)):
            if index % 2:
                media.append(items[part])
                result.append(make_media_ids(part))
            else:
                result.append(part)
    return result, tuple(media)
