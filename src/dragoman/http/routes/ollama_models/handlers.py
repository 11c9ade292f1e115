"""Routes of Ollama's API that list, describe and change models.

What changes models needs an admin key. A change is made in a thread by the service that the command
line uses, too; afterwards, models that are no longer there are unloaded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar
from weakref import WeakValueDictionary

from msgspec import UNSET

from dragoman.errors import NotFound, Unavailable
from dragoman.http.asgi import RequestContext
from dragoman.http.router import Route, RouteGroup
from dragoman.http.routes.ollama_models.blob_upload import receive_blob
from dragoman.http.routes.ollama_models.descriptions import ModelDescriber
from dragoman.http.routes.ollama_models.progress import ProgressRun, Report, Work
from dragoman.http.routes.shared.context import RouteContext
from dragoman.models.management.blobs import parse_digest
from dragoman.models.management.model_name import check_new_name
from dragoman.models.management.recipe import Recipe, make_messages
from dragoman.models.management.service import AllowsModel
from dragoman.protocols.ollama import DIALECT
from dragoman.protocols.ollama import installed_models as wire
from dragoman.protocols.ollama.management import (
    OllamaCopyRequest,
    OllamaCreateRequest,
    OllamaDeleteRequest,
    OllamaPullRequest,
    OllamaShowRequest,
    decode_copy,
    decode_create,
    decode_delete,
    decode_pull,
    decode_show,
)
from dragoman.protocols.shared.openai import encode
from dragoman.telemetry.record import get_record
from dragoman.types import Json

T = TypeVar("T")
MAX_PULLS = 2  # at the same time
STATUS_OF_STAGE = {"unpacking": "verifying sha256 digest"}


def make_routes(context: RouteContext) -> list[Route]:
    handlers = OllamaModelHandlers(context)
    group = RouteGroup("/api", DIALECT)
    return [*make_reading_routes(group, handlers), *make_changing_routes(group, handlers)]


def make_reading_routes(group: RouteGroup, handlers: OllamaModelHandlers) -> list[Route]:
    return [
        group.make(
            "GET",
            "/tags",
            handlers.list_models,
            "List installed models.",
            response_type=wire.OllamaModelList,
        ),
        group.make(
            "GET",
            "/ps",
            handlers.list_running,
            "List loaded models.",
            response_type=wire.OllamaRunningList,
        ),
        group.make(
            "POST",
            "/show",
            handlers.show,
            "Describe a model.",
            request_type=OllamaShowRequest,
            response_type=wire.OllamaModelDescription,
            counts_as_concurrent=False,
        ),
    ]


def make_changing_routes(group: RouteGroup, handlers: OllamaModelHandlers) -> list[Route]:
    make = partial(group.make, access="admin")
    return [
        make(
            "POST",
            "/pull",
            handlers.pull,
            "Download a model.",
            request_type=OllamaPullRequest,
            response_type=wire.OllamaProgress,
        ),
        make(
            "POST",
            "/create",
            handlers.create,
            "Create a model from another one, or from an uploaded file.",
            request_type=OllamaCreateRequest,
            response_type=wire.OllamaProgress,
        ),
        make(
            "POST",
            "/copy",
            handlers.copy,
            "Give a model another name.",
            request_type=OllamaCopyRequest,
        ),
        make(
            "DELETE",
            "/delete",
            handlers.delete,
            "Delete a model.",
            request_type=OllamaDeleteRequest,
        ),
        make("GET", "/blobs/{digest}", handlers.find_blob, "Check that a file was uploaded."),
        make(
            "POST",
            "/blobs/{digest}",
            handlers.upload_blob,
            "Upload a file to create a model from.",
            body_type="application/octet-stream",
        ),
    ]


class OllamaModelHandlers:
    """The handlers of these routes."""

    def __init__(self, context: RouteContext) -> None:
        self._context = context
        self._registry = context.runtime.services.models
        self._manager = context.runtime.manager
        self._describer = ModelDescriber(self._registry, self._manager)
        self._pulls = asyncio.Semaphore(MAX_PULLS)
        self._pull_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        audit = context.runtime.audit
        self._manager.on_change = lambda event, fields: audit.record(event, add_requester(fields))

    async def list_models(self, request: RequestContext) -> None:
        models = await asyncio.to_thread(self._describer.list_installed, request.owner)
        await request.send_response(200, encode(wire.OllamaModelList(models)))

    async def list_running(self, request: RequestContext) -> None:
        entries = self._registry.list_models(request.owner)
        models = await asyncio.to_thread(self._describer.list_running, entries)
        await request.send_response(200, encode(wire.OllamaRunningList(models)))

    async def show(self, request: RequestContext) -> None:
        fields = await self._context.reader.read_and_decode(request, decode_show)
        name = request.record.requested_model = fields.model_name
        entry = self._registry.get(name, request.owner)
        source = self._registry.get_source(name, request.owner)
        describe = partial(self._describer.describe, source, entry, verbose=bool(fields.verbose))
        await request.send_response(200, await asyncio.to_thread(lambda: encode(describe())))

    async def pull(self, request: RequestContext) -> None:
        fields = await self._context.reader.read_and_decode(request, decode_pull)
        name = request.record.requested_model = fields.model_name
        self._manager.check_changeable()
        wanted = self._manager.find_download(name, self._make_filter(request))

        async def work(report: Report) -> bytes:
            report(encode(wire.OllamaProgress(status="pulling manifest")))
            lock = self._pull_locks.setdefault(wanted, asyncio.Lock())
            async with lock, self._pulls:
                listener = PullListener(report)
                try:
                    await asyncio.to_thread(self._manager.pull, name, listener)
                    listener.finish_file()
                finally:
                    listener.is_cancelled = True  # the thread ends the download
            report(encode(wire.OllamaProgress(status="writing manifest")))
            return encode(wire.OllamaProgress(status="success"))

        await self._respond(request, work, fields.stream)

    async def create(self, request: RequestContext) -> None:
        fields = await self._context.reader.read_and_decode(request, decode_create)
        recipe = make_recipe(fields)
        request.record.requested_model = recipe.name
        create = partial(self._manager.create, recipe, self._make_filter(request))
        request.warnings += await self._change(create)
        lines = ("reading model metadata", "creating system layer", "writing manifest")

        async def work(report: Report) -> bytes:
            for status in lines:
                report(encode(wire.OllamaProgress(status=status)))
            return encode(wire.OllamaProgress(status="success"))

        await self._respond(request, work, fields.stream)

    async def copy(self, request: RequestContext) -> None:
        fields = await self._context.reader.read_and_decode(request, decode_copy)
        destination = check_new_name(fields.destination, "destination")
        request.record.requested_model = destination
        copy = partial(self._manager.copy, fields.source, destination, overwrite=True)
        await self._change(partial(copy, allows=self._make_filter(request)))
        await request.send_response(200, b"")

    async def delete(self, request: RequestContext) -> None:
        fields = await self._context.reader.read_and_decode(request, decode_delete)
        name = request.record.requested_model = fields.model_name
        await self._change(partial(self._manager.delete, name, allows=self._make_filter(request)))
        await request.send_response(200, b"")

    async def find_blob(self, request: RequestContext) -> None:
        digits = parse_digest(request.params["digest"])
        if await asyncio.to_thread(self._manager.blobs.find, digits) is None:
            raise NotFound(f"There is no blob sha256:{digits}.")
        await request.send_response(200, b"")

    async def upload_blob(self, request: RequestContext) -> None:
        digits = parse_digest(request.params["digest"])
        timeout = self._context.runtime.settings.receive_timeout
        is_new = await receive_blob(request, self._manager.blobs, digits, timeout)
        if is_new:
            self._manager.on_change("blob_uploaded", {"digest": f"sha256:{digits}"})
        await request.send_response(201 if is_new else 200, b"")

    async def _respond(self, request: RequestContext, work: Work, stream: bool | None) -> None:
        """Send the lines of a change, or the last; clients get a stream unless they decline it."""

        async def prepare() -> ProgressRun:
            return ProgressRun(work, DIALECT, streams=stream is not False)

        await self._context.responder.respond(request, prepare)

    async def _change(self, change: Callable[[], T]) -> T:
        """Make a change to its end, also if the client disconnects."""
        result = await asyncio.shield(asyncio.ensure_future(asyncio.to_thread(change)))
        self._registry.unload_removed()
        return result

    def _make_filter(self, request: RequestContext) -> AllowsModel:
        """Return whether the key of a request may use a model; others do not exist for it."""
        return partial(self._registry.names.allows, request.owner)


class PullListener:
    """Turns what a download reports into lines; a line for each percent at most."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._digest, self._total = "", 0
        self._last: tuple[str, int] = ("", -1)
        self.is_cancelled = False

    def start_file(self, digest: str, size: int) -> None:
        self.finish_file()
        self._digest, self._total = digest, size
        self._report_bytes(0)

    def finish_file(self) -> None:
        """Report that all of a file is there, also if it was before."""
        if self._digest:
            self._report_bytes(self._total)

    def report(self, stage: str, fraction: float) -> None:
        if self.is_cancelled:
            raise Unavailable("The download was cancelled.")
        percent = int(100 * fraction)
        if (stage, percent) == self._last:
            return
        self._last = stage, percent
        if stage in STATUS_OF_STAGE:
            if percent == 0:
                self._report(encode(wire.OllamaProgress(status=STATUS_OF_STAGE[stage])))
        else:
            self._report_bytes(int(self._total * fraction))

    def _report_bytes(self, completed: int) -> None:
        line = wire.OllamaProgress(status=f"pulling {self._digest[:12] or 'file'}")
        line.digest = f"sha256:{self._digest}" if self._digest else UNSET
        line.total, line.completed = self._total, completed
        self._report(encode(line))


def make_recipe(fields: OllamaCreateRequest) -> Recipe:
    """Return what a client wants to create."""
    license_texts = [fields.license] if isinstance(fields.license, str) else fields.license or []
    return Recipe(
        name=check_new_name(fields.model_name, "model"),
        source=fields.from_ or None,
        files=fields.files or {},
        adapters=fields.adapters or {},
        template=fields.template or None,
        system=fields.system or None,
        parameters=fields.parameters or {},
        messages=make_messages((item.role, item.content) for item in fields.messages or ()),
        license=tuple(text for text in license_texts if text),
    )


def add_requester(fields: Mapping[str, Json]) -> dict[str, Json]:
    """Add to a line of the audit log whose request makes the change."""
    record = get_record()
    key = record.key_name or record.owner[:8]
    return {**fields, "key": key, "request_id": record.request_id}
