"""LoRA adapters in the format of PEFT: a directory with `adapter_config.json` and weights."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from dragoman.engines.limits import check_adapters
from dragoman.engines.vllm.native import Native
from dragoman.errors import BadRequest, ModelBroken, Unsupported
from dragoman.types import Job

log = logging.getLogger("dragoman.vllm")

CONFIG = "adapter_config.json"
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM has room for
MAX_CONFIG_BYTES = 1 << 20


def read_rank(directory: str) -> int:
    """Return the rank of an adapter, or raise a `ModelBroken`."""
    try:
        with (Path(directory) / CONFIG).open("rb") as stream:
            rank = json.loads(stream.read(MAX_CONFIG_BYTES)).get("r")
    except (OSError, ValueError, AttributeError) as error:
        log.error("cannot read the %s of %s: %r", CONFIG, directory, error)
        raise ModelBroken(f"The adapter has no readable {CONFIG}.") from None
    if not isinstance(rank, int) or not 0 < rank <= RANKS[-1]:
        raise ModelBroken(f"The rank of the adapter must be from 1 to {RANKS[-1]}.")
    return rank


def find_max_rank(adapters: Mapping[str, str]) -> int:
    """Return the rank for which vLLM must have room."""
    largest = max(read_rank(path) for path in adapters.values())
    return next(rank for rank in RANKS if rank >= largest)


class AdapterSet:
    """The adapters of an engine, by name. vLLM loads the weights of one when it is first used."""

    def __init__(
        self, paths: Mapping[str, str], make_request: Callable[..., Native] | None
    ) -> None:
        self._make_request = make_request  # vLLM's `LoRARequest`; None: adapters are off
        self._numbers = itertools.count(1)
        self._requests: dict[str, Native] = {}
        for name, path in paths.items():
            self._requests[name] = self._make(name, path)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._requests)

    def check(self, job: Job) -> None:
        """Reject adapters that vLLM cannot apply: it applies one, at its own scale."""
        check_adapters(job.lora, self._requests)
        if len(job.lora) > 1:
            raise Unsupported("This model's engine applies one adapter at a time.", param="lora")
        if any(adapter.scale != 1.0 for adapter in job.lora):
            raise Unsupported("This model's engine has no scale for adapters.", param="lora")

    def find(self, job: Job) -> Native | None:
        """Return vLLM's object for the adapter of a job."""
        return self._requests.get(job.lora[0].name) if job.lora else None

    async def load(self, name: str, path: str, add: Callable[[Native], Awaitable[bool]]) -> None:
        """Load an adapter, in place of one of the same name."""
        if self._make_request is None:
            raise Unsupported("Adapters are off: start with `enable_lora` in the engine's options.")
        read_rank(path)
        request = self._make(name, path)
        await add(request)
        self._requests[name] = request

    async def unload(self, name: str, remove: Callable[[int], Awaitable[bool]]) -> None:
        request = self._requests.pop(name, None)
        if request is None:
            raise BadRequest(f"There is no adapter `{name}`.", param="lora_name")
        await remove(request.lora_int_id)

    def _make(self, name: str, path: str) -> Native:
        if self._make_request is None:
            raise Unsupported("Adapters are off.")
        return self._make_request(
            lora_name=name, lora_int_id=next(self._numbers), lora_path=str(path)
        )
