"""The models of a server: which are loaded, which are loading, and which are evicted.

A request `acquire`s a model by name and holds it through a `Lease`; a model in use is never
unloaded. The first request for a model starts its load, all others wait for the same load, and each
gives up after its own timeout while the load continues. A file that cannot be loaded is not tried
again until it changes or an operator requests it.

Everything here runs on one event loop and needs no lock: state changes only between two awaits.
Choosing which models to evict, detaching them and reserving the memory is one such step, so two
loads cannot count on the same memory. A detached model stays counted until its engine is closed,
and a new load waits for that. A lease is made in the same step that saw the model ready. Only the
catalog's scan of the disk and the loaders' work on files run in threads, and the catalog
replaces its index in one step.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from dragoman.engines import get_capabilities
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
from dragoman.models.memory import MemoryPlanner, make_info
from dragoman.models.model import (
    Model,
    ModelInfo,
    progress_listener,
    report_progress,
)
from dragoman.models.names import ModelNames
from dragoman.models.residency import Lease, LoadedModel, LoadState, ModelSlot, Residency
from dragoman.types.detached_task import start_detached

log = logging.getLogger("dragoman.models")

Loader = Callable[[ModelSource], Awaitable[Model]]
# Called with the model, the stage of its load, and the fraction that is done.
LoadListener = Callable[[str, str, float], None]


class ModelPolicy(Struct, frozen=True, kw_only=True):
    """How models are loaded and unloaded. Times are seconds, sizes bytes."""

    memory: int = 0  # maximum size of all loaded models; 0 is no limit
    keep_alive: float = -1  # how long an idle model stays loaded; -1 is forever
    wait: float = 120.0  # how long a request waits for its model to load
    any_model: bool = False  # an unknown name means the default model


class ModelEntry(Struct, frozen=True, kw_only=True):
    """A model in a list of models."""

    id: str
    state: LoadState
    info: ModelInfo
    aliases: tuple[str, ...] = ()
    progress: float = 0.0
    error: str | None = None  # why loading failed
    model: Model | None = None  # if it is loaded
    expires_at: float | None = None  # when it is unloaded if it stays idle; None: it is not
    keep_alive: float | None = None  # seconds that it stays loaded when it is idle; -1 is forever


class ModelRegistry:
    """Finds, loads and unloads models by name."""

    def __init__(
        self,
        catalog: ModelCatalog,
        loader: Loader,
        policy: ModelPolicy | None = None,
        listener: LoadListener | None = None,
        planner: MemoryPlanner | None = None,
    ) -> None:
        self.policy = policy or ModelPolicy()
        self.catalog = catalog
        self._loader = loader
        self._listener = listener
        self.planner = planner  # None: a model needs as much memory as its files
        # called with the id of a model and the seconds that it took to load
        self.on_loaded: Callable[[str, float], None] = lambda model, seconds: None
        self.names = ModelNames(catalog, self.policy.any_model, self._is_loaded)
        self._slots: dict[str, ModelSlot] = {}
        available = planner.machine.usable if planner is not None else 0
        self._residency = Residency(self.policy.memory, self.policy.keep_alive, available)
        self._refreshing: asyncio.Task[None] | None = None
        catalog.refresh()

    @classmethod
    def from_model(
        cls, model: Model, *, aliases: Sequence[str] = (), policy: ModelPolicy | None = None
    ) -> ModelRegistry:
        """Make a registry of one model, whose engine the caller closes."""
        catalog = ModelCatalog()
        path = f"engine:{model.id}"
        catalog.add(ModelSource(id=model.id, real_path=path, created=model.info.created), aliases)
        registry = cls(catalog, _reject_load, policy)
        slot = registry._get_updated_slot(catalog.list_sources()[0])
        registry._add_model(slot, model, owned=False)
        return registry

    @property
    def default_name(self) -> str:
        """The name of the model for requests that name none."""
        source = self.names.find_default()
        return source.id if source is not None else ""

    async def acquire(
        self,
        name: str,
        wait: float | None = None,
        *,
        owner: str = "",
        keep_alive: float | None = None,
    ) -> Lease:
        """Load a model if necessary and keep it loaded until the lease is released.

        A model that the `owner` of the request may not use does not exist for it. `keep_alive`:
        the seconds that it stays loaded when it is idle, from now on; negative is forever.
        """
        slot = await self._resolve(name, owner)
        loaded = slot.loaded
        if loaded is None:
            timeout = self.policy.wait if wait is None else wait
            loaded = await self._wait_until_loaded(slot, timeout)
        model = loaded.model
        answer_name = self.names.get_answer_name(name, model.id, model.aliases)
        return Lease(self._residency, loaded, answer_name, keep_alive)

    async def load(self, name: str, wait: float | None = None, *, owner: str = "") -> ModelEntry:
        """Load a model now, even one that failed before."""
        slot = await self._resolve(name, owner, retry_failed=True)
        if slot.loaded is None:
            await self._wait_until_loaded(slot, self.policy.wait if wait is None else wait)
        return self._make_entry(slot)

    async def unload(self, name: str, *, owner: str = "") -> ModelEntry:
        """Unload a model: at once if it is idle, else after the last request that uses it."""
        slot = self._find_slot(name, owner)
        if slot is None:
            raise self.names.make_not_found(name, owner)
        if slot.task is not None:
            slot.task.cancel()
            await asyncio.wait({slot.task})
        loaded = slot.loaded
        if loaded is not None:
            if not loaded.is_owned:
                raise Unsupported("This model cannot be unloaded.", param="model")
            if await self._residency.put_to_sleep(loaded):
                return self._make_entry(slot)
            if (closing := self._residency.detach(loaded)) is not None:
                await asyncio.shield(closing)
        return self._make_entry(slot)

    def unload_removed(self) -> None:
        """Unload models that are no longer in the catalog, once their requests are finished."""
        keys = {source.key for source in self.catalog.list_sources()}
        for loaded in self._residency.list_serving():
            if loaded.is_owned and loaded.slot.source.key not in keys:
                self._residency.detach(loaded)

    def get_source(self, name: str, owner: str = "") -> ModelSource:
        """Return the model that a request means, or raise `ModelNotFound`."""
        source = self.names.find(name, owner)
        if source is None:
            raise self.names.make_not_found(name, owner)
        return source

    async def load_adapter(self, name: str, adapter: str, path: str, *, owner: str = "") -> None:
        """Load a LoRA adapter into a model that is loaded, if its engine can."""
        await self._change_adapters(name, owner, "load_adapter", adapter, path)

    async def unload_adapter(self, name: str, adapter: str, *, owner: str = "") -> None:
        await self._change_adapters(name, owner, "unload_adapter", adapter)

    async def _change_adapters(self, name: str, owner: str, method: str, *values: str) -> None:
        slot = self._find_slot(name, owner)
        if slot is None:
            raise self.names.make_not_found(name, owner)
        model = None if slot.loaded is None else slot.loaded.model
        change = getattr(model and model.engine, method, None)
        if model is None or change is None:
            raise Unsupported("Load the model first; its engine must take adapters.", param="model")
        await change(*values)
        model.capabilities = get_capabilities(model.engine)
        model.info = replace(model.info, lora=model.capabilities.lora)

    def list_models(self, owner: str = "") -> list[ModelEntry]:
        """List the models that an owner may use.

        On an event loop, this refreshes the catalog in the background.
        """
        try:
            self._start_refresh()
        except RuntimeError:
            self.catalog.refresh()
        slots = dict.fromkeys(map(self._get_updated_slot, self.catalog.list_sources()))
        slots |= dict.fromkeys(loaded.slot for loaded in self._residency.list_serving())
        return [self._make_entry(slot) for slot in slots if self.names.allows(owner, slot.source)]

    def get(self, name: str, owner: str = "") -> ModelEntry:
        slot = self._find_slot(name, owner)
        if slot is None:
            raise self.names.make_not_found(name, owner)
        return self._make_entry(slot)

    def list_loaded(self) -> Iterable[Model]:
        return [loaded.model for loaded in self._residency.list_serving()]

    async def aclose(self) -> None:
        """Close all models, even those in use."""
        tasks = [slot.task for slot in self._slots.values() if slot.task is not None]
        tasks += [self._refreshing] if self._refreshing is not None else []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        loaded_models = list(self._residency.loaded)
        closing = [self._residency.detach(loaded, force=True) for loaded in loaded_models]
        if pending := [task for task in closing if task is not None]:
            await asyncio.wait(pending)

    async def _resolve(self, name: str, owner: str, retry_failed: bool = False) -> ModelSlot:
        slot = self._find_slot(name, owner)
        if slot is not None and slot.is_active:
            return slot
        await self._refresh()
        slot = self._find_slot(name, owner)
        if slot is None:
            raise self.names.make_not_found(name, owner)
        if slot.error is not None and slot.failed_stamp == slot.source.stamp and not retry_failed:
            raise _copy_error(slot.error)
        return slot

    def _find_slot(self, name: str, owner: str) -> ModelSlot | None:
        source = self.names.find(name, owner)
        return None if source is None else self._get_updated_slot(source)

    def _is_loaded(self, source: ModelSource) -> bool:
        slot = self._slots.get(source.key)
        return slot is not None and slot.loaded is not None

    def _get_updated_slot(self, source: ModelSource) -> ModelSlot:
        """Return the slot of a model; create it, or update it from the catalog, if necessary."""
        slot = self._slots.get(source.key)
        if slot is None:
            slot = self._slots[source.key] = ModelSlot(source)
        elif not slot.is_active:
            slot.source = source
        elif slot.loaded is not None and slot.source.stamp == source.stamp:  # its names may differ
            slot.source, model = source, slot.loaded.model
            model.id, model.aliases = source.id, source.aliases
        return slot

    async def _refresh(self) -> None:
        await asyncio.shield(self._start_refresh())

    def _start_refresh(self) -> asyncio.Task[None]:
        if self._refreshing is None:
            self._refreshing = asyncio.get_running_loop().create_task(self._refresh_catalog())
        return self._refreshing

    async def _refresh_catalog(self) -> None:
        try:
            await asyncio.to_thread(self.catalog.refresh)
        except Exception:
            log.exception("cannot read the models directory")
        finally:
            self._refreshing = None

    def _make_entry(self, slot: ModelSlot) -> ModelEntry:
        source, state = slot.source, slot.state
        error = slot.error.message if slot.error is not None else source.broken
        info = (
            slot.loaded.model.info if slot.loaded is not None else make_info(source, self.planner)
        )
        return ModelEntry(
            id=source.id,
            state=state,
            info=info,
            aliases=source.aliases,
            progress=1.0 if state == "ready" else slot.progress if state == "loading" else 0.0,
            error=error if state == "failed" else None,
            model=slot.loaded.model if slot.loaded is not None else None,
            expires_at=slot.loaded.expires_at if slot.loaded is not None else None,
            keep_alive=self._residency.get_keep_alive(slot.loaded) if slot.loaded else None,
        )

    async def _wait_until_loaded(self, slot: ModelSlot, wait: float) -> LoadedModel:
        """Wait until the model is loaded. While a request waits, the model is not evicted."""
        deadline = time.monotonic() + wait
        slot.waiting += 1
        try:
            while slot.loaded is None:
                task = slot.task or self._start_load(slot)
                timeout = max(0.0, deadline - time.monotonic())
                done, _ = await asyncio.wait({task}, timeout=timeout)
                if not done:
                    raise ModelLoading(
                        f"The model `{slot.source.id}` is still loading.",
                        retry_after=slot.estimate_seconds_left(),
                    )
                if slot.error is not None:
                    raise _copy_error(slot.error)
            return slot.loaded
        finally:
            slot.waiting -= 1
            if slot.loaded is not None:
                self._residency.start_idle_timer(slot.loaded)

    def _start_load(self, slot: ModelSlot) -> asyncio.Task[None]:
        task = start_detached(self._load(slot))
        slot.start_load(task)
        return task

    async def _load(self, slot: ModelSlot) -> None:
        source = slot.source
        progress_listener.set(lambda stage, fraction: self._report_progress(slot, stage, fraction))
        try:
            report_progress("loading", 0.0)
            if source.broken is not None:
                raise ModelBroken(source.broken)
            source = await asyncio.to_thread(self._plan, source)
            needed = source.plan.memory.total if source.plan is not None else source.size
            evictions = self._residency.reserve_memory(slot, needed)
            if evictions:
                await asyncio.wait(evictions)
            model = await self._loader(source)
            self._add_model(slot, model, owned=True)
            slot.last_load_seconds = slot.seconds_loading
            self.on_loaded(source.id, slot.last_load_seconds)
            report_progress("ready", 1.0)
        except DragomanError as error:
            self._record_failure(slot, error)
        except Exception:
            log.exception("failed to load %s", source.id)
            self._record_failure(slot, ModelBroken("The engine could not load this model."))
        finally:
            self._residency.release_reservation(slot)

    def _plan(self, source: ModelSource) -> ModelSource:
        """Return the model with its plan, or raise a `ModelBroken` if it does not fit."""
        source = self.catalog.resolve_draft(source)
        plan = None if self.planner is None else self.planner.plan(source)
        return replace(source, plan=plan)

    def _add_model(self, slot: ModelSlot, model: Model, owned: bool) -> None:
        model.id, model.aliases = slot.source.id, slot.source.aliases
        self._residency.add_model(slot, model, owned)

    def _record_failure(self, slot: ModelSlot, error: DragomanError) -> None:
        """Store the error for waiting requests; a broken file makes later requests fail, too."""
        name = slot.source.id
        message = error.message
        if isinstance(error, ModelBroken):
            slot.failed_stamp = slot.source.stamp
            message = f"The model `{name}` cannot be loaded. {error.message}"
        level = logging.INFO if isinstance(error, Unavailable) else logging.ERROR  # it may pass
        log.log(level, "failed to load %s: %s", name, error.message)
        record = replace(serialize_error(error), message=message, param="model")
        slot.error = deserialize_error(record)

    def _report_progress(self, slot: ModelSlot, stage: str, fraction: float) -> None:
        name = slot.source.id
        slot.progress = fraction
        if fraction >= 1.0:
            log.info("%s: %s after %.1f s", name, stage, slot.seconds_loading)
        else:
            log.info("%s: %s (%d %%)", name, stage, round(100 * fraction))
        if self._listener is not None:
            self._listener(name, stage, fraction)


async def _reject_load(source: ModelSource) -> Model:
    raise ModelNotFound(f"The model `{source.id}` is no longer available.", param="model")


def _copy_error(error: DragomanError) -> DragomanError:
    """Copy an error, so that each request that raises it has its own traceback."""
    return deserialize_error(serialize_error(error))
