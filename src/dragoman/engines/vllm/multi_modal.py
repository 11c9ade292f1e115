"""Prompts with pictures or sound, as vLLM takes them.

vLLM takes token ids and media together. Where a media item is to be, the ids have the placeholder
of the model (`<image>`, `<|vision_start|><|image_pad|><|vision_end|>`), and vLLM's processor
replaces it by as many ids as the item has tokens. It finds placeholders by their ids, so text of a
client that spells one stays text. Where it does not find them it looks for them in the text; so the
result is compared with the prompt, and one that differs is rejected.

Media is processed in vLLM's thread for it, and the result is cached there by the digest of the
item. It is rendered without the cache that vLLM shares with its engine core: a request that is
cancelled between the two leaves that one wrong.
"""

from __future__ import annotations

import asyncio
import io
import logging
import wave
from collections.abc import Sequence

from msgspec import Struct

from dragoman.engines.limits import ENDS_IN_MEDIA, UNREADABLE_MEDIA, split_media_prompt
from dragoman.engines.trial_media import make_trial_items
from dragoman.engines.vllm.loading import LoadedLlm
from dragoman.engines.vllm.native import Native
from dragoman.errors import BadRequest, ModelBroken
from dragoman.types.media import MediaItem
from dragoman.types.media_ids import PromptCount, make_media_ids

log = logging.getLogger("dragoman.vllm")

KINDS = ("image", "audio")  # those of ours that vLLM has under the same names
MISPLACED = "The engine does not put the pictures or sound of this prompt where they belong."
TRIAL_FAILED = (
    "vLLM cannot read a picture or sound with this model; the log of the engine says why. Set "
    "`--engine-arg language_model_only=true` to serve text only."
)


class RenderedMedia(Struct, frozen=True):
    """A prompt as vLLM's engine core takes it."""

    prompt: Native  # vLLM's `MultiModalInput`
    count: PromptCount


class MultiModalPrompts:
    """Renders and counts the prompts with media of one model."""

    def __init__(self, llm: Native, model_class: Native) -> None:
        self._renderer = llm.renderer
        self._tokenizer = llm.get_tokenizer()
        self._model_class = model_class
        info = self._renderer.get_mm_processor().info
        limits = info.allowed_mm_limits
        self._limits = {kind: limits[kind] for kind in KINDS if limits.get(kind)}
        self._sample_rate: float | None = info.data_parser.audio_resampler.target_sr
        self._max_tokens = int(llm.input_processor.mm_encoder_cache_size)  # of one item

    @property
    def modalities(self) -> tuple[str, ...]:
        return tuple(self._limits)

    async def try_items(self) -> None:
        """Read one small item of each kind, or raise a `ModelBroken`."""
        for item in make_trial_items(self.modalities):
            prompt = [*make_media_ids(item.digest), 0]
            try:
                rendered = await self.render(prompt, [item])
            except BadRequest:
                raise ModelBroken(TRIAL_FAILED) from None
            if not rendered.count.is_exact:
                log.warning("vLLM puts media at other places than the chat template does")

    async def render(
        self, prompt: Sequence[int], media: Sequence[MediaItem], cache_scope: str = ""
    ) -> RenderedMedia:
        """Return a prompt as vLLM takes it; items are cached within one scope."""
        texts, items = self._split(prompt, media)
        try:
            placeholders = self._make_placeholders(items)
            data = await asyncio.to_thread(self._decode_items, items)
            request = _make_request(texts, placeholders, data)
            [rendered] = await self._renderer.render_cmpl_async([request], skip_mm_cache=True)
        except Exception as error:
            log.warning("vLLM cannot read media: %r", error)
            raise BadRequest(UNREADABLE_MEDIA, param="messages") from None
        self._check_sizes(rendered)
        counts = _count_items(rendered, texts, placeholders)
        if cache_scope:
            rendered["cache_salt"] = cache_scope
            rendered["mm_hashes"] = {
                kind: [f"{cache_scope}-{digest}" for digest in digests]
                for kind, digests in rendered["mm_hashes"].items()
            }
        tokens = len(rendered["prompt_token_ids"])
        return RenderedMedia(rendered, PromptCount(tokens, counts is not None, counts or ()))

    def _split(
        self, prompt: Sequence[int], media: Sequence[MediaItem]
    ) -> tuple[list[list[int]], list[MediaItem]]:
        texts, items = split_media_prompt(prompt, media)
        if not texts[-1]:
            raise BadRequest(ENDS_IN_MEDIA, param="messages")
        for kind, limit in self._limits.items():
            if sum(item.kind == kind for item in items) > limit:
                raise BadRequest(
                    f"This model's engine takes at most {limit} items of the kind `{kind}` in one "
                    "prompt.",
                    param="messages",
                )
        return texts, items

    def _decode_items(self, items: Sequence[MediaItem]) -> dict[str, Native]:
        """Return the fields of vLLM's prompt that hold media and what identifies it."""
        data: dict[str, list[Native]] = {}
        digests: dict[str, list[str]] = {}
        for item in items:
            is_sound = item.kind == "audio"
            decoded = _decode_sound(item, self._sample_rate) if is_sound else _decode_picture(item)
            data.setdefault(item.kind, []).append(decoded)
            digests.setdefault(item.kind, []).append(item.digest)
        return {"multi_modal_data": data, "multi_modal_uuids": digests}

    def _check_sizes(self, rendered: Native) -> None:
        """Reject an item for which vLLM's encoder cache has no room."""
        for found_of_kind in rendered["mm_placeholders"].values():
            size = max(found.get_num_embeds() for found in found_of_kind)
            if self._max_tokens and size > self._max_tokens:
                raise BadRequest(
                    f"A picture or sound of this request takes {size} tokens; this model's engine "
                    f"reads at most {self._max_tokens}. Send a smaller one.",
                    param="messages",
                )

    def _make_placeholders(self, items: Sequence[MediaItem]) -> list[list[int]]:
        """Return the ids that stand for each item; some models number them."""
        numbers = dict.fromkeys(KINDS, 0)
        placeholders = []
        for item in items:
            numbers[item.kind] += 1
            text = self._model_class.get_placeholder_str(item.kind, numbers[item.kind])
            placeholders.append(
                list(self._tokenizer.encode(text, add_special_tokens=False)) if text else []
            )
        return placeholders


async def open_prompts(loaded: LoadedLlm) -> MultiModalPrompts | None:
    """Find out which media a model reads, and try it; None if it reads text only."""
    model = loaded.config.model_config
    if not getattr(model, "supports_multimodal_inputs", False):
        return None
    if not hasattr(loaded.llm, "renderer"):
        log.warning("pictures and sound are not read: this vLLM has no `renderer`")
        return None
    from vllm.model_executor.model_loader import get_model_cls

    prompts = MultiModalPrompts(loaded.llm, await asyncio.to_thread(get_model_cls, model))
    await prompts.try_items()
    return prompts if prompts.modalities else None


def _make_request(
    texts: Sequence[list[int]], placeholders: Sequence[list[int]], media: dict[str, Native]
) -> Native:
    """Return vLLM's `TokensPrompt`."""
    ids = list(texts[0])
    for placeholder, text in zip(placeholders, texts[1:], strict=True):
        ids += [*placeholder, *text]
    return {"prompt_token_ids": ids, **media}


def _decode_picture(item: MediaItem) -> Native:
    """Return a picture as vLLM takes it; the file was written by us."""
    from PIL import Image

    picture = Image.open(io.BytesIO(item.data), formats=("PNG",))
    picture.load()
    return picture


def _decode_sound(item: MediaItem, rate: float | None) -> Native:
    """Return a sound as vLLM takes it, with the sample rate that the model wants, if any."""
    import numpy as np

    with wave.open(io.BytesIO(item.data)) as sound:
        samples = np.frombuffer(sound.readframes(sound.getnframes()), dtype="<i2") / 32768.0
        own_rate = sound.getframerate()
    if rate is None or rate == own_rate:
        return samples.astype(np.float32), own_rate
    # vLLM's own ways need packages that its build for the CPU has not
    count = max(1, round(len(samples) * rate / own_rate))
    spectrum = np.fft.rfft(samples)[: count // 2 + 1]
    resampled = np.fft.irfft(spectrum, count) * (count / len(samples))
    return resampled.astype(np.float32), rate


def _count_items(
    rendered: Native, texts: Sequence[list[int]], placeholders: Sequence[list[int]]
) -> tuple[int, ...] | None:
    """Return the tokens of each item; None if the texts are not around the items as they were.

    What vLLM replaced can be a part of a placeholder. Then the rest of it is before and behind.
    """
    ids = rendered["prompt_token_ids"]
    ranges = sorted(
        (found.offset, found.offset + found.length)
        for found_of_kind in rendered["mm_placeholders"].values()
        for found in found_of_kind
    )
    if len(ranges) != len(placeholders):
        return None
    counts = [end - start for start, end in ranges]
    gap_starts = [0, *(end for _, end in ranges)]
    gap_ends = [*(start for start, _ in ranges), len(ids)]
    around = [[], *placeholders, []]  # the placeholder before each text, and the one behind it
    for index, text in enumerate(texts):
        gap = ids[gap_starts[index] : gap_ends[index]]
        before = _find_rest(gap, text, around[index], around[index + 1])
        if before is None:
            return None
        if index > 0:
            counts[index - 1] += before
        if index < len(counts):
            counts[index] += len(gap) - before - len(text)
    return tuple(counts)


def _find_rest(gap: list[int], text: list[int], before: list[int], behind: list[int]) -> int | None:
    """Return how many ids of the placeholder before a text are in a gap between two items.

    None if the gap is anything else than the end of that placeholder, the text, and the start of
    the placeholder behind it.
    """
    rest = len(gap) - len(text)
    for length in range(min(rest, len(before)) + 1):
        end = before[len(before) - length :]
        if gap == [*end, *text, *behind[: rest - length]]:
            return length
    return None
