"""Decides context, slots and prompt cache of a model before it is loaded, from the memory it needs.

The memory of a model is its weights, the KV cache of every slot, buffers for computing, and a
cache of prompts that are no longer in a slot. Each slot has a KV cache of its own for a whole
context, so that an admitted request always fits, whatever else is running. These rules decide what
is not set:

- The context is what the model was trained for. It is lowered only if not even one slot with it
  fits in memory.
- There are four slots, or as many fewer as keep the model within half of the memory, which leaves
  room for other models and programs.
- The prompt cache has 512 MiB, but at most an eighth of the memory.

What an operator has set is never changed: if it does not fit, the model is not loaded, and the
error says what it needs. There is one exception: a context beyond the trained one is lowered to it,
with a warning, because the engine extends a context only by YaRN.

Memory is the limit that the operator set, or nine tenths of what is available. A model whose
weights fit on the GPUs gets a context that fits there, too; otherwise GPUs and main memory count
together. Weights are mapped from the file, so weights beyond the available memory make a
model slow and not impossible.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from dragoman.engines.llamacpp.gguf import TENSOR_TYPES
from dragoman.engines.llamacpp.loading.model_shape import LayerCache, ModelShape
from dragoman.engines.options import EngineOptions
from dragoman.engines.system_memory import format_memory
from dragoman.errors import ModelBroken

MIN_CONTEXT = 4096  # a model that does not fit is served with this context nevertheless
STEP = 256  # contexts are multiples of this
MAX_SLOTS = 4
SLOTS_SHARE = 0.5  # of the memory, which more than one slot may need
CACHE_RAM, CACHE_RAM_SHARE = 512, 0.125  # MiB; share of the memory
PROCESS = 96 << 20  # bytes of a process with an engine: interpreter, library, vocabulary
CPU_BATCH, GPU_BATCH, MICRO_BATCH = 128, 2048, 512
CHECKPOINTS, CHECKPOINT_STEP = 32, 8192  # copies of windows and states that the server keeps
NO_GPU = (
    "--gpu-layers has no effect: the installed build of llama.cpp (xllamacpp) finds no GPU; the "
    "model runs on the CPU. docs/gpu.md says how to install a build for a GPU"
)
VALUE_BYTES = {name.lower(): size / block for name, block, size in TENSOR_TYPES.values()}


class Machine(Struct, frozen=True, kw_only=True):
    """The memory that a model may use."""

    memory: int  # bytes, those of the GPUs included
    gpu_memory: int = 0  # bytes of all GPUs; 0: there is none
    is_limit: bool = False  # set by the operator, so that the model must stay below it

    @property
    def usable(self) -> int:
        return self.memory if self.is_limit else self.memory * 9 // 10


class MemoryEstimate(Struct, frozen=True, kw_only=True):
    """Bytes that a model needs."""

    weights: int
    cache: int  # KV cache of all slots
    compute: int
    prompts: int  # cached prompts that are no longer in a slot, at most
    process: int = PROCESS

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.compute + self.prompts + self.process

    def describe(self) -> str:
        return (
            f"{format_memory(self.total)} (weights {format_memory(self.weights)}, KV cache "
            f"{format_memory(self.cache)}, compute {format_memory(self.compute + self.process)}, "
            f"prompt cache up to {format_memory(self.prompts)})"
        )


class MemoryPlan(Struct, frozen=True, kw_only=True):
    """How a model is run, and what it needs."""

    context: int  # of each slot
    trained_context: int
    slots: int
    cache_ram: int  # MiB
    memory: MemoryEstimate
    available: int  # bytes that the model may use
    is_lowered: bool = False  # the context is what fits in memory
    warnings: tuple[str, ...] = ()

    def describe(self) -> str:
        detail = f"trained for {self.trained_context}"
        if self.is_lowered:
            detail += f", lowered to fit in {format_memory(self.available)}; --context changes it"
        elif self.context < self.trained_context:
            detail += "; --context changes it"
        elif self.context > self.trained_context:
            detail += ", extended by YaRN"
        slots = "slot" if self.slots == 1 else "slots"
        return (
            f"context {self.context} tokens ({detail}), {self.slots} {slots}, "
            f"memory about {self.memory.describe()}"
        )


def make_plan(
    shape: ModelShape, options: EngineOptions, machine: Machine, draft: ModelShape | None = None
) -> MemoryPlan:
    """Decide how to run a model, or raise a `ModelBroken` that says what it needs."""
    planner = _Planner(shape, options, machine, draft)
    slots = options.slots or planner.choose_slots()
    context = planner.context or planner.choose_context(slots)
    memory = planner.estimate(context, slots)
    warnings = [*planner.warnings, *_check_fit(memory, options, machine, (context, slots))]
    return MemoryPlan(
        context=context,
        trained_context=shape.trained_context,
        slots=slots,
        cache_ram=planner.cache_ram,
        memory=memory,
        available=planner.room,
        is_lowered=not planner.context and context < shape.trained_context,
        warnings=tuple(warnings),
    )


class _Planner:
    """The options of one model on one machine."""

    def __init__(
        self, shape: ModelShape, options: EngineOptions, machine: Machine, draft: ModelShape | None
    ) -> None:
        self.shape = shape
        self.options = options
        self.machine = machine
        self.draft = draft
        self.warnings: list[str] = []
        default_ram = min(CACHE_RAM, int(machine.usable * CACHE_RAM_SHARE) >> 20)
        self.cache_ram = default_ram if options.cache_ram is None else options.cache_ram
        self.context = self._read_context()
        self.room = self._measure_room()
        if (options.gpu_layers or 0) > 0 and not machine.gpu_memory:
            self.warnings.append(NO_GPU)

    def _measure_room(self) -> int:
        """Return the bytes to use: those of the GPUs alone if the whole model fits there."""
        gpu_room = self.machine.gpu_memory * 9 // 10
        context = min(self.shape.trained_context, MIN_CONTEXT)
        may_fit = gpu_room and self.options.gpu_layers in (None, -1)
        if may_fit and self.estimate(context, 1).total <= gpu_room:
            return min(gpu_room, self.machine.usable)
        return self.machine.usable

    def _read_context(self) -> int:
        """Return the context that the operator set, or 0."""
        context, trained = self.options.context or 0, self.shape.trained_context
        longest = get_longest_context(self.shape, self.options)
        if context > longest:
            self.warnings.append(
                f"--context {context} is more than the {trained} tokens that the model was trained "
                f"for; it is served with {longest}. --rope-scaling yarn extends the context."
            )
        return min(context, longest)

    def estimate(self, context: int, slots: int) -> MemoryEstimate:
        shapes = [self.shape] if self.draft is None else [self.shape, self.draft]
        options, on_gpu = self.options, self.machine.gpu_memory > 0
        return MemoryEstimate(
            weights=sum(shape.weights for shape in shapes),
            cache=sum(estimate_cache(shape, options, context) for shape in shapes) * slots,
            compute=sum(
                estimate_compute(shape, options, (context, slots), on_gpu) for shape in shapes
            ),
            prompts=self.cache_ram << 20,
        )

    def choose_slots(self) -> int:
        context = self.context or self.shape.trained_context
        room = self.room * SLOTS_SHARE
        counts = range(MAX_SLOTS, 1, -1)
        return next((n for n in counts if self.estimate(context, n).total <= room), 1)

    def choose_context(self, slots: int) -> int:
        """Return the trained context, or the largest that fits.

        A model whose weights alone do not fit gets a small one, because weights are mapped.
        """
        context = self._find_largest(slots, self.room)
        if context < MIN_CONTEXT and _is_mapped(self.options, self.machine):
            mapped = self._find_largest(slots, self.room + self.estimate(0, 1).weights)
            context = max(context, min(MIN_CONTEXT, mapped))
        return max(context, STEP)

    def _find_largest(self, slots: int, room: int) -> int:
        trained = self.shape.trained_context
        if self.estimate(trained, slots).total <= room:
            return trained
        low, high = 0, -(-trained // STEP)  # in steps: `low` fits, `high` does not
        while high - low > 1:
            middle = (low + high) // 2
            if self.estimate(middle * STEP, slots).total <= room:
                low = middle
            else:
                high = middle
        return low * STEP


def _is_mapped(options: EngineOptions, machine: Machine) -> bool:
    """Whether the weights need no memory of their own: the kernel can read them again."""
    return options.mmap is not False and not options.mlock and not machine.is_limit


def get_longest_context(shape: ModelShape, options: EngineOptions) -> int:
    """Return the largest context that the engine serves: the trained one unless YaRN extends it."""
    if options.rope_scaling != "yarn":
        return shape.trained_context
    scale = get_rope_scale(shape, options) or 1.0
    return max(shape.trained_context, int((options.yarn_orig_ctx or shape.trained_context) * scale))


def get_rope_scale(shape: ModelShape, options: EngineOptions) -> float | None:
    """Return the factor of the context by RoPE scaling; YaRN without one reaches `context`."""
    if options.rope_scale is not None:
        return options.rope_scale
    if options.rope_freq_scale is not None:
        return 1 / options.rope_freq_scale
    if options.rope_scaling == "yarn" and options.context:
        return max(1.0, options.context / (options.yarn_orig_ctx or shape.trained_context))
    return None


def get_batches(options: EngineOptions, on_gpu: bool) -> tuple[int, int]:
    """Return how many prompt tokens are processed between two checks, and at once."""
    batch = options.batch or (GPU_BATCH if on_gpu else CPU_BATCH)
    return batch, min(options.ubatch or MICRO_BATCH, batch)


def get_cache_types(options: EngineOptions) -> tuple[str, str]:
    default = "q8_0" if options.exact else "f16"
    return options.cache_type_k or default, options.cache_type_v or default


def estimate_cache(shape: ModelShape, options: EngineOptions, context: int) -> int:
    """Return the bytes of one slot: keys and values, the state of recurrent layers, checkpoints."""
    window = shape.window + get_batches(options, on_gpu=False)[1]
    window = context if options.swa_full else min(context, _round_up(window))
    full = _measure_layers(shape.full, options) * _round_up(context)
    windowed = _measure_layers(shape.windowed, options) * window
    copied = windowed if not options.swa_full else 0
    checkpoints = min(CHECKPOINTS, context // CHECKPOINT_STEP + 1)
    return int(full + windowed + shape.state + checkpoints * (copied + shape.state))


def _measure_layers(layers: LayerCache, options: EngineOptions) -> float:
    keys, values = get_cache_types(options)
    return layers.keys * VALUE_BYTES[keys] + layers.values * VALUE_BYTES[values]


def estimate_compute(
    shape: ModelShape, options: EngineOptions, size: tuple[int, int], on_gpu: bool
) -> int:
    """Return the bytes of the buffers for one batch; `size` is context and slots."""
    context, slots = size
    tokens = get_batches(options, on_gpu)[1]
    layers = 4 * tokens * (8 * shape.embedding + 2 * shape.feed_forward)
    mask = 2 * tokens * context
    scores = 4 * tokens * context * shape.heads if options.flash_attn == "off" else 0
    return layers + mask + scores + 4 * slots * shape.vocabulary


def _round_up(tokens: int) -> int:
    return tokens + -tokens % STEP


def _check_fit(
    memory: MemoryEstimate, options: EngineOptions, machine: Machine, size: tuple[int, int]
) -> Iterable[str]:
    """Raise an error if the model cannot run; return warnings if it will be slow."""
    total = machine.memory
    is_mapped = _is_mapped(options, machine)
    needed = memory.total - (memory.weights + memory.prompts if is_mapped else 0)
    if needed > total:
        context, slots = size
        raise ModelBroken(
            f"It needs about {memory.describe()} for {slots} x {context} tokens; "
            f"{format_memory(total)} {'is the limit' if machine.is_limit else 'are available'}. "
            "Lower --context or --slots, or use a smaller --cache-type-k and --cache-type-v."
        )
    if memory.total > total:
        return (
            f"it needs about {memory.describe()}, more than the {format_memory(total)} that are "
            "available; it may be slow",
        )
    return ()
