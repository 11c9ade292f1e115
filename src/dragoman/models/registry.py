"""The models of a server: who is loaded, who is loading, who has to go.

A request `acquire`s a model by name and holds it through a `Lease`; a model with users is never
unloaded under them. The first to ask for a model starts its load, all others wait for that same
load, and each gives up when its own patience ends while the load goes on. A file that cannot be
loaded is not tried again until it changes or an operator asks for it.

Everything here happens on one event loop, and no lock is needed: state changes only between two
awaits. Choosing whom to evict, detaching them and reserving the room is one such step, so two
loads can not count on the same memory. What is detached stays counted until its engine is closed,
and a new load waits for that. A lease is made in the same step that saw the model ready. Only the
catalogue's look at the disk and the loaders' work on files run in threads, and the catalogue puts
its index in place in one step.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence

from msgspec import Struct

from dragoman.errors import (
    DragomanError,
    ModelBroken,
    ModelLoading,
    ModelNotFound,
    Unavailable,
    Unsupported,
    deserialize_error,
    serialize_error,
)
from dragoman.models.catalog import ModelCatalog, ModelSource
from dragoman.models.model import (
    Model,
    ModelInfo,
    make_engine_model,
    progress_listener,
    report_progress,
)
from dragoman.models.output_format import FormatOverrides
from dragoman.models.residency import LoadedModel, ModelSlot, Residency, State
from dragoman.types import Engine

__all__ = [
    "Lease",
    "Model",
    "ModelEntry",
    "ModelInfo",
    "ModelPolicy",
    "ModelRegistry",
    "report_progress",
]

log = logging.getLogger("dragoman.models")

Loader = Callable[[ModelSource], Awaitable[Model]]
Listener = Callable[[str, str, float], None]  # model, what is being done, how much of all is done


class ModelPolicy(Struct, frozen=True, kw_only=True):
    """How models are kept. Times are seconds, sizes bytes."""

    memory: int = 0  # most bytes of models kept loaded; 0 is no limit
    keep_alive: float = -1  # how long an idle model stays loaded; -1 is for ever
    wait: float = 120.0  # how long a request waits for its model to load
    any_model: bool = False  # a name that nothing has means the first model


class ModelEntry(Struct, frozen=True, kw_only=True):
    """A model as it is listed."""

    id: str
    state: State
    info: ModelInfo
    aliases: tuple[str, ...] = ()
    progress: float = 0.0
    error: str | None = None  # why it failed


class Lease:
    """Holds a model in memory until it is released. Releasing twice is harmless."""

    def __init__(self, residency: Residency, loaded: LoadedModel) -> None:
        self.model = loaded.model
        self._residency = residency
        self._loaded: LoadedModel | None = loaded
        residency.take(loaded)

    def release(self) -> None:
        held, self._loaded = self._loaded, None
        if held is not None:
            self._residency.give_back(held)

    def __enter__(self) -> Model:
        return self.model

    def __exit__(self, *_: object) -> None:
        self.release()


class ModelRegistry:
    """The registry."""

    def __init__(
        self,
        catalog: ModelCatalog,
        loader: Loader,
        policy: ModelPolicy | None = None,
        listener: Listener | None = None,
    ) -> None:
        self.policy = policy or ModelPolicy()
        self._catalog = catalog
        self._loader = loader
        self._listener = listener
        self._slots: dict[str, ModelSlot] = {}
        self._residency = Residency(self.policy.memory, self.policy.keep_alive)
        self._refreshing: asyncio.Task[None] | None = None
        catalog.refresh()

    @classmethod
    def from_engine(
        cls,
        engine: Engine,
        name: str,
        *,
        aliases: Sequence[str] = (),
        chat_template: str | None = None,
        formats: FormatOverrides = (None, None),
        policy: ModelPolicy | None = None,
    ) -> ModelRegistry:
        """A registry of one model around an engine that someone else made and will close."""
        catalog = ModelCatalog()
        source = ModelSource(id=name, real_path=f"engine:{name}", created=int(time.time()))
        catalog.add(source, aliases)
        models = cls(catalog, _no_loader, policy)
        model = make_engine_model(engine, name, chat_template, source.created, formats)
        slot = models._get_slot(catalog.entries()[0])
        models._adopt(slot, model, owned=False)
        return models

    @property
    def default_name(self) -> str:
        """The name of the model that is meant when none is named."""
        source = self._find_default()
        return source.id if source is not None else ""

    async def acquire(self, name: str, wait: float | None = None) -> Lease:
        """The model of that name, loaded, and kept so until the lease is released."""
        slot = await self._resolve(name)
        held = slot.loaded
        if held is None:
            held = await self._wait_until_loaded(slot, self.policy.wait if wait is None else wait)
        return Lease(self._residency, held)

    async def load(self, name: str, wait: float | None = None) -> ModelEntry:
        """Load a model now, also one that failed before."""
        slot = await self._resolve(name, retry_failed=True)
        if slot.loaded is None:
            await self._wait_until_loaded(slot, self.policy.wait if wait is None else wait)
        return self._make_entry(slot)

    async def unload(self, name: str) -> ModelEntry:
        """Let go of a model: at once if nobody uses it, else when the last one is done."""
        slot = self._find_slot(name)
        if slot is None:
            raise self._make_not_found(name)
        if slot.task is not None:
            slot.task.cancel()
            await asyncio.wait({slot.task})
        if slot.loaded is not None:
            if not slot.loaded.owned:
                raise Unsupported("This model cannot be unloaded.", param="model")
            closing = self._residency.retire(slot.loaded)
            if closing is not None:
                await asyncio.shield(closing)
        return self._make_entry(slot)

    def list_models(self) -> list[ModelEntry]:
        """All models. On a loop, the disk is looked at again in the background for next time."""
        try:
            self._start_refresh()
        except RuntimeError:
            self._catalog.refresh()
        slots = dict.fromkeys(map(self._get_slot, self._catalog.entries()))
        slots |= dict.fromkeys(held.slot for held in self._residency.serving())
        return [self._make_entry(slot) for slot in slots]

    def get(self, name: str) -> ModelEntry:
        slot = self._find_slot(name)
        if slot is None:
            raise self._make_not_found(name)
        return self._make_entry(slot)

    def list_loaded(self) -> Iterable[Model]:
        return [held.model for held in self._residency.serving()]

    async def aclose(self) -> None:
        """Close everything, whoever still uses it."""
        tasks = [slot.task for slot in self._slots.values() if slot.task is not None]
        tasks += [self._refreshing] if self._refreshing is not None else []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        closing = [self._residency.retire(held, force=True) for held in list(self._residency.all)]
        if waiting := [task for task in closing if task is not None]:
            await asyncio.wait(waiting)

    async def _resolve(self, name: str, retry_failed: bool = False) -> ModelSlot:
        slot = self._find_slot(name)
        if slot is not None and slot.active:
            return slot
        await self._refresh()
        slot = self._find_slot(name)
        if slot is None:
            raise self._make_not_found(name)
        if slot.error is not None and slot.failed == slot.source.stamp and not retry_failed:
            raise _again(slot.error)
        return slot

    def _find_slot(self, name: str) -> ModelSlot | None:
        source = self._catalog.find(name)
        if source is None and (self.policy.any_model or not name.strip()):
            source = self._find_default()
        return self._get_slot(source) if source is not None else None

    def _find_default(self) -> ModelSource | None:
        """The operator's first model, else one that is in memory, else any that can be loaded."""
        if self._catalog.added:
            return self._catalog.added[0]
        sources = self._catalog.entries()
        for source in sources:
            slot = self._slots.get(source.key)
            if slot is not None and slot.loaded is not None:
                return source
        usable = [source for source in sources if source.broken is None and source.kind == "gguf"]
        return next(iter(usable or sources), None)

    def _get_slot(self, source: ModelSource) -> ModelSlot:
        slot = self._slots.get(source.key)
        if slot is None:
            slot = self._slots[source.key] = ModelSlot(source)
        elif not slot.active:
            slot.source = source
        return slot

    def _make_not_found(self, name: str) -> ModelNotFound:
        some = [source.id for source in self._catalog.entries()[:5]]
        there = f"Models here: {', '.join(some)}." if some else "There are no models here yet."
        return ModelNotFound(f"The model `{_shown(name)}` does not exist. {there}", param="model")

    async def _refresh(self) -> None:
        await asyncio.shield(self._start_refresh())

    def _start_refresh(self) -> asyncio.Task[None]:
        if self._refreshing is None:
            self._refreshing = asyncio.get_running_loop().create_task(self._refresh_catalog())
        return self._refreshing

    async def _refresh_catalog(self) -> None:
        try:
            await asyncio.to_thread(self._catalog.refresh)
        except Exception:
            log.exception("the models directory cannot be read")
        finally:
            self._refreshing = None

    def _make_entry(self, slot: ModelSlot) -> ModelEntry:
        source, state = slot.source, slot.state
        error = slot.error.message if slot.error is not None else source.broken
        info = slot.loaded.model.info if slot.loaded is not None else _info(source)
        return ModelEntry(
            id=source.id,
            state=state,
            info=info,
            aliases=source.aliases,
            progress=1.0 if state == "ready" else slot.progress if state == "loading" else 0.0,
            error=error if state == "failed" else None,
        )

    async def _wait_until_loaded(self, slot: ModelSlot, wait: float) -> LoadedModel:
        """Wait until the model is there. While we wait it counts as used."""
        deadline = time.monotonic() + wait
        slot.waiting += 1
        try:
            while slot.loaded is None:
                task = slot.task or self._start_load(slot)
                left = max(0.0, deadline - time.monotonic())
                done, _ = await asyncio.wait({task}, timeout=left)
                if not done:
                    raise ModelLoading(
                        f"The model `{slot.source.id}` is still loading.", retry_after=_left(slot)
                    )
                if slot.error is not None:
                    raise _again(slot.error)
            return slot.loaded
        finally:
            slot.waiting -= 1
            if slot.loaded is not None:
                self._residency.rest(slot.loaded)

    def _start_load(self, slot: ModelSlot) -> asyncio.Task[None]:
        slot.error, slot.failed = None, None
        slot.began, slot.progress = time.monotonic(), 0.0
        slot.task = asyncio.get_running_loop().create_task(self._load(slot))
        return slot.task

    async def _load(self, slot: ModelSlot) -> None:
        source = slot.source
        progress_listener.set(lambda what, done: self._report_progress(slot, what, done))
        try:
            report_progress("loading", 0.0)
            if source.broken is not None:
                raise ModelBroken(source.broken)
            going = self._residency.make_room(slot)
            if going:
                await asyncio.wait(going)
            model = await self._loader(source)
            self._adopt(slot, model, owned=True)
            report_progress("ready", 1.0)
        except asyncio.CancelledError:
            slot.error = Unavailable("The model was unloaded while it loaded.", retry_after=1)
            raise
        except DragomanError as error:
            self._fail(slot, error)
        except Exception:
            log.exception("loading %s failed", source.id)
            self._fail(slot, ModelBroken("The engine could not load this model."))
        finally:
            slot.task = None
            self._residency.forget_room(slot)

    def _adopt(self, slot: ModelSlot, model: Model, owned: bool) -> None:
        model.id, model.aliases = slot.source.id, slot.source.aliases
        self._residency.adopt(slot, model, owned)

    def _fail(self, slot: ModelSlot, error: DragomanError) -> None:
        """Only what a file is to blame for is remembered after those who wait were told."""
        name = slot.source.id
        said = error.message
        if isinstance(error, ModelBroken):
            slot.failed = slot.source.stamp
            said = f"The model `{name}` cannot be loaded. {error.message}"
        log.error("%s is not loaded: %s", name, error.message)
        note = serialize_error(error)
        slot.error = deserialize_error(
            type(note)(note.kind, said, "model", note.code, note.retry_after)
        )

    def _report_progress(self, slot: ModelSlot, what: str, done: float) -> None:
        name = slot.source.id
        slot.progress = done
        if done >= 1.0:
            log.info("%s: %s after %.1f s", name, what, time.monotonic() - slot.began)
        else:
            log.info("%s: %s (%d %%)", name, what, round(100 * done))
        if self._listener is not None:
            self._listener(name, what, done)


async def _no_loader(source: ModelSource) -> Model:
    raise ModelNotFound(f"The model `{source.id}` is not here any more.", param="model")


def _again(error: DragomanError) -> DragomanError:
    """The same error for another reader, with a traceback of its own."""
    return deserialize_error(serialize_error(error))


def _info(source: ModelSource) -> ModelInfo:
    return ModelInfo(
        architecture=source.architecture,
        parameters=source.parameters,
        quantisation=source.quantisation,
        context=source.options.context or source.context,
        size=source.size,
        lora=tuple(source.options.lora),
        created=source.created,
    )


def _left(slot: ModelSlot) -> float:
    """When a load should be done, from how far it is."""
    spent = time.monotonic() - slot.began
    guess = spent * (1 - slot.progress) / slot.progress if slot.progress > 0.05 else 5.0
    return float(min(60, max(1, round(guess))))


def _shown(name: str) -> str:
    """A name that a client sent, fit to be put in a message."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in name.strip()[:100])
