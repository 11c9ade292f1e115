"""Builds the long-lived services of a server from its settings.

This package is independent of HTTP. `http.app.App` and the command line receive the `Runtime` and
pass its services on explicitly.

model_catalog    the models that the settings name: files, directories, servers
startup_model    loads the default model, and waits for the server that runs it
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from dragoman import config
from dragoman.config import Settings
from dragoman.config.package_index import make_pip_environment
from dragoman.engines.adapter import adapt
from dragoman.engines.in_process_watch import InProcessWatch
from dragoman.engines.subprocess.engine import SubprocessEngine
from dragoman.engines.system_memory import read_available_memory
from dragoman.errors import ModelBroken, Unavailable
from dragoman.errors import StartupError as StartupError
from dragoman.files import FileLimits, FileService
from dragoman.grammar.compiler.compiler_pool import CompilerPool
from dragoman.keys import AuditLog, KeyFileError, KeyStore, RateLimiter, make_key_settings
from dragoman.mcp import client
from dragoman.mcp.url_guard import UrlGuard, UrlRejected
from dragoman.media.fetch import MediaFetcher
from dragoman.media.limits import MediaLimits
from dragoman.media.service import MediaService
from dragoman.models.catalog import ModelCatalog
from dragoman.models.loaders.engine import (
    OPTIONS,
    EngineModelOptions,
    make_engine_model,
    read_options,
)
from dragoman.models.loaders.loader import LoadSettings, load
from dragoman.models.loaders.model_preset import check_public_prompts, make_preset
from dragoman.models.loaders.startup_checks import check_models
from dragoman.models.management.service import ModelManager
from dragoman.models.memory import MemoryPlanner
from dragoman.models.registry import ModelPolicy, ModelRegistry
from dragoman.pipeline.admission import Admission
from dragoman.pipeline.sampling import fit_preset
from dragoman.pipeline.services import Services
from dragoman.replay import ReplayService
from dragoman.responses.service import RemoteToolsConfig
from dragoman.responses.state import PersistentState
from dragoman.responses.tool_rounds import RemoteToolLimits
from dragoman.runtime.model_catalog import find_models_file as find_models_file
from dragoman.runtime.model_catalog import get_format_overrides as get_format_overrides
from dragoman.runtime.model_catalog import make_model_options as make_model_options
from dragoman.runtime.model_catalog import make_unknown_model_error as make_unknown_model_error
from dragoman.runtime.model_catalog import open_catalog as open_catalog
from dragoman.runtime.model_catalog import parse_configured_models as parse_configured_models
from dragoman.runtime.model_catalog import report_preset_errors as report_preset_errors
from dragoman.store.rows import StoreError, StoreLimits
from dragoman.telemetry.spans import close_provider, make_provider
from dragoman.types.limits import find_no_limits

log = logging.getLogger("dragoman.runtime")

ENGINE_OPTIONS = (*OPTIONS, "tracer_provider")  # of `dragoman.app` that are not settings
# Names of the same settings in other servers.
SETTING_ALIASES = {"tool_parser": "format", "reasoning_parser": "reasoning_format"}
FLAG = re.compile(r"`?--([a-z][a-z-]*)`?")


class Runtime(Struct, frozen=True, kw_only=True, eq=False):
    """The long-lived services of one server."""

    settings: Settings
    services: Services
    state: PersistentState
    files: FileService
    remote_tools: RemoteToolsConfig
    keys: KeyStore
    audit: AuditLog
    manager: ModelManager
    memory: int  # bytes that the process could use when it started
    load_settings: Callable[[], Settings]  # reads them again, or raises `SettingsError`
    tracer_provider: object | None = None  # of OpenTelemetry; None is that of the program
    owns_tracer_provider: bool = False  # then it closes the provider

    async def aclose(self) -> None:
        await self.services.aclose()  # the replay service writes to the store when it closes
        await self.state.aclose()
        self.audit.close()
        if self.owns_tracer_provider:
            await asyncio.to_thread(close_provider, self.tracer_provider)


def build_runtime(
    models: ModelRegistry,
    settings: Settings,
    tracer_provider: object | None = None,
    load_settings: Callable[[], Settings] | None = None,
) -> Runtime:
    """Build all services around a model registry; `load_settings` reads the settings again."""
    config.set_library_defaults()
    load_settings = load_settings or (lambda: settings)
    keys = build_key_store(settings, load_settings)
    models.names.may_use = keys.allows_model
    limits = StoreLimits(
        ttl=settings.store_ttl, size=settings.store_size, find_limits=keys.find_limits
    )
    state = PersistentState(settings.store_url, limits)
    files = build_file_service(settings, state, keys)
    replay = ReplayService() if settings.recall else None
    own_provider = None if tracer_provider else make_tracer_provider(settings)
    if replay is not None:
        replay.use_store(state)
    services = build_services(models, settings, replay, keys)
    services.media.find_file = partial(files.find_file, max_bytes=settings.media_size)
    return Runtime(
        settings=settings,
        services=services,
        state=state,
        files=files,
        remote_tools=make_remote_tools(settings),
        keys=keys,
        audit=_open_audit_log(settings.audit_log),
        manager=make_manager(models.catalog, settings),
        memory=read_available_memory(),
        load_settings=load_settings,
        tracer_provider=tracer_provider or own_provider,
        owns_tracer_provider=own_provider is not None,
    )


def make_manager(catalog: ModelCatalog, settings: Settings) -> ModelManager:
    """Make the service that changes the models of a catalog."""
    return ModelManager(
        catalog, blob_limit=settings.blob_limit, make_pip_environment=make_pip_environment
    )


def build_services(
    models: ModelRegistry,
    settings: Settings,
    replay: ReplayService | None = None,
    keys: KeyStore | None = None,
) -> Services:
    """Build the services that the pipeline needs; none of them has state on disk."""
    find_limits = find_no_limits if keys is None else keys.find_limits
    return Services(
        models=models,
        compiler=CompilerPool(),
        admission=Admission(settings.queue, find_limits, settings.load_wait),
        media=make_media_service(settings),
        replay=replay,
        limiter=RateLimiter(find_limits),
    )


def build_file_service(settings: Settings, state: PersistentState, keys: KeyStore) -> FileService:
    limits = FileLimits(
        file=settings.file_size,
        owner=settings.files_size,
        total=settings.store_size,
        ttl=settings.store_ttl,
        find_limits=keys.find_limits,
    )
    return FileService(state.get_store, limits)


def build_key_store(settings: Settings, load_settings: Callable[[], Settings]) -> KeyStore:
    """Read all keys, or raise `StartupError`."""
    try:
        return KeyStore(make_key_settings(settings), lambda: make_key_settings(load_settings()))
    except KeyFileError as error:
        problem = str(error)
        end = "" if problem.endswith((".", "?")) else "."
        raise StartupError(problem + end) from None
    except ValueError as error:
        raise StartupError(str(error)) from None


def build_engine_runtime(engine: object, options: Mapping[str, object]) -> Runtime:
    """Build a runtime around one engine that the caller made and closes."""
    configuration = config.load_configuration(_rename_aliases(options))
    config.log_warnings(configuration)
    settings = _make_embedded_settings(configuration.settings)
    if settings.models:
        log.warning(
            "%s: `models` has no effect, because a program brings the engine", settings.config
        )
    model = make_engine_model(adapt(engine), read_engine_options(options, settings))
    models = ModelRegistry.from_model(
        model, aliases=settings.served_name, policy=make_policy(settings)
    )
    for model in models.list_loaded():
        with report_preset_errors():
            preset = make_preset(settings, model.renderer, model.id)
            model.preset = fit_preset(preset, model.capabilities)
            check_public_prompts(settings, model.capabilities)
        if not isinstance(model.engine, SubprocessEngine):  # a `SubprocessEngine` watches itself
            model.watch = InProcessWatch(model.engine, get_hang_timeout(settings))
        model.shares_cache = bool(settings.shared_cache)
        model.public_prompts = settings.public_prompt
    return build_runtime(
        models,
        settings,
        options.get("tracer_provider"),
        lambda: _make_embedded_settings(configuration.reload()),
    )


@contextmanager
def name_options_of_programs() -> Iterator[None]:
    """Name options in errors instead of flags: a program writes `port=`, not `--port`."""
    try:
        yield
    except (StartupError, config.SettingsError) as error:
        message = FLAG.sub(lambda flag: f"`{flag[1].replace('-', '_')}`", str(error))
        raise type(error)(message) from None


def _open_audit_log(path: str) -> AuditLog:
    try:
        return AuditLog(Path(path) if path else None)
    except OSError as error:
        raise StartupError(
            f"--audit-log: cannot write {path!r}: {error.strerror or error}."
        ) from None


def _make_embedded_settings(settings: Settings) -> Settings:
    """Return the settings of a server in a program: it writes no file unless asked to."""
    return settings if settings.store else replace(settings, store="sqlite://")


async def open_store(runtime: Runtime) -> None:
    """Open the store before anything is loaded, or raise `StartupError`."""
    try:
        await runtime.state.open_now()
    except (StoreError, Unavailable) as error:
        problem = str(error).splitlines()[0].rstrip(".")
        raise StartupError(
            f"{problem}. Choose another with --store, or `sqlite://` to store nothing on disk."
        ) from None


def read_engine_options(options: Mapping[str, object], settings: Settings) -> EngineModelOptions:
    """Read the options of `dragoman.app` that are not settings, or raise `StartupError`."""
    try:
        return read_options(options, get_format_overrides(settings))
    except (ValueError, TypeError, ModelBroken) as error:
        raise StartupError(str(error)) from None


def build_models(settings: Settings, model: str, *, may_wait: bool = False) -> ModelRegistry:
    """Build the registry of the models on disk; `model` is the default one.

    With `may_wait`, the server of `--upstream` need not be up yet, see `startup_model`.
    """
    catalog = open_catalog(settings, model, may_wait=may_wait)
    sources = catalog.list_sources()
    try:
        check_models(catalog, sources, settings.engines_path)
    except ModelBroken as error:
        raise StartupError(error.message) from None
    for source in sources:
        if source.broken is not None:
            log.warning("model `%s`: %s: %s", source.id, source.path, source.broken)
    planner = MemoryPlanner(settings.memory)
    common = LoadSettings(
        hang_timeout=get_hang_timeout(settings),
        engines=settings.engines_path,
        upstream_key=settings.upstream_key,
    )
    load_model = partial(load, settings=common)
    return ModelRegistry(catalog, load_model, make_policy(settings), planner=planner)


def get_hang_timeout(settings: Settings) -> float:
    return math.inf if settings.hang_timeout < 0 else settings.hang_timeout


def make_policy(settings: Settings) -> ModelPolicy:
    return ModelPolicy(
        memory=settings.memory,
        keep_alive=settings.keep_alive,
        wait=settings.load_wait,
        any_model=settings.any_model,
    )


def make_remote_tools(settings: Settings) -> RemoteToolsConfig:
    """Return the MCP servers that requests may use, and the limits for their tools."""
    try:
        url_guard, servers = UrlGuard(settings.mcp_hosts), client.parse_servers(settings.mcp)
    except (UrlRejected, ValueError) as error:
        raise StartupError(str(error)) from None
    if not client.is_installed():
        if servers:
            raise StartupError("MCP servers need `pip install 'dragoman[mcp]'`.")
        return RemoteToolsConfig()
    timeout = settings.mcp_timeout
    limits = RemoteToolLimits(
        rounds=settings.mcp_rounds, seconds=5 * timeout, output_chars=max(settings.mcp_output, 0)
    )
    return RemoteToolsConfig(lambda: client.McpClient(url_guard, timeout), servers, limits)


def make_media_service(settings: Settings) -> MediaService:
    """Return what reads the media of requests, within the operator's limits."""
    try:
        fetcher = MediaFetcher(settings.media_hosts, allow_http=settings.media_http)
    except UrlRejected as error:
        raise StartupError(f"--media-hosts: {error}") from None
    limits = MediaLimits(
        items=settings.media_items,
        size=settings.media_size,
        pixels=settings.media_pixels,
        side=settings.media_side,
        seconds=settings.media_seconds,
    )
    return MediaService(limits, fetcher)


def make_tracer_provider(settings: Settings) -> object | None:
    """Return what makes spans, if the operator wants them to be sent to a collector."""
    if not settings.otlp_endpoint:
        return None
    try:
        return make_provider(settings.otlp_endpoint)
    except ImportError:
        raise StartupError("--otlp-endpoint needs `pip install 'dragoman[otel]'`.") from None


def _rename_aliases(options: Mapping[str, object]) -> dict[str, object]:
    """Return the settings under our names. A setting given under two names must be the same."""
    renamed: dict[str, object] = {}
    for name, value in options.items():
        if name in ENGINE_OPTIONS or value is None:
            continue
        setting = SETTING_ALIASES.get(name, name)
        if renamed.setdefault(setting, value) != value:
            alias = next(alias for alias, ours in SETTING_ALIASES.items() if ours == setting)
            raise StartupError(
                f"`{setting}` and `{alias}` are the same setting but have different values."
            )
    return renamed
