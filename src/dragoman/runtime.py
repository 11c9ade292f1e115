"""Builds the long-lived services of a server from its settings.

Nothing here knows HTTP. `http.app.App` and the command line receive the `Runtime` and hand its
services on explicitly.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from dragoman import config
from dragoman.config import Settings
from dragoman.engines import get_factory
from dragoman.engines.adapter import adapt
from dragoman.grammar.compiler.compiler_pool import CompilerPool
from dragoman.mcp import client
from dragoman.mcp.url_guard import UrlGuard, UrlRejected
from dragoman.models.catalog import ModelCatalog
from dragoman.models.loaders.gguf import load
from dragoman.models.mapping import ModelOptions
from dragoman.models.output_format import FormatOverrides, check_names
from dragoman.models.registry import ModelPolicy, ModelRegistry
from dragoman.pipeline.admission import Admission
from dragoman.pipeline.services import Services
from dragoman.replay import ReplayService
from dragoman.responses.service import RemoteToolsConfig
from dragoman.responses.state import PersistentState
from dragoman.responses.tool_rounds import RemoteToolLimits
from dragoman.store.rows import StoreLimits

ENGINE_OPTIONS = ("name", "chat_template")  # options of `dragoman.app` that are not settings
# Names of the same settings in other servers.
SETTING_ALIASES = {"tool_parser": "format", "reasoning_parser": "reasoning_format"}


class StartupError(Exception):
    """The server cannot start. The message is shown to the operator as it is."""


class Runtime(Struct, frozen=True, kw_only=True, eq=False):
    """The long-lived services of one server."""

    settings: Settings
    services: Services
    state: PersistentState
    remote_tools: RemoteToolsConfig

    async def aclose(self) -> None:
        await self.services.aclose()  # the replay service writes to the store when it closes
        await self.state.aclose()


def build_runtime(models: ModelRegistry, settings: Settings) -> Runtime:
    """Build all services around a model registry."""
    limits = StoreLimits(ttl=settings.store_ttl, size=settings.store_size)
    state = PersistentState(settings.store_url, limits)
    replay = ReplayService() if settings.recall else None
    if replay is not None:
        replay.use_store(state)
    return Runtime(
        settings=settings,
        services=build_services(models, settings, replay),
        state=state,
        remote_tools=make_remote_tools(settings),
    )


def build_services(
    models: ModelRegistry, settings: Settings, replay: ReplayService | None = None
) -> Services:
    """Build the services that the pipeline needs; none of them has state on disk."""
    return Services(
        models=models,
        compiler=CompilerPool(),
        admission=Admission(settings.queue),
        replay=replay,
    )


def build_engine_runtime(engine: object, options: Mapping[str, object]) -> Runtime:
    """Build a runtime around one engine that the caller made and closes."""
    settings = config.load(_rename_aliases(options))
    if not settings.store:  # embedded in a program: write no file unless asked to
        settings = replace(settings, store="sqlite://")
    models = ModelRegistry.from_engine(
        adapt(engine),
        str(options.get("name") or "default"),
        aliases=settings.served_name,
        chat_template=read_template(options.get("chat_template")),
        formats=get_format_overrides(settings),
        policy=make_policy(settings),
    )
    return build_runtime(models, settings)


def build_models(settings: Settings, model: str) -> ModelRegistry:
    """Build the registry of the models on disk; `model` is the default one."""
    return ModelRegistry(open_catalog(settings, model), load, make_policy(settings))


def open_catalog(settings: Settings, model: str | None = None) -> ModelCatalog:
    """Read the catalog of models; the model named on the command line comes first."""
    root = settings.models_path
    root.mkdir(parents=True, exist_ok=True)
    file = Path(settings.models_file) if settings.models_file else root / "models.yaml"
    catalog = ModelCatalog(root, file, make_model_options(settings))
    catalog.refresh()
    if model is not None:
        source = catalog.resolve(model, paths=True)
        if source is None:
            raise StartupError(
                f"There is no model {model!r}. `dragoman list` lists the installed models."
            )
        catalog.add(source, settings.served_name)
        catalog.refresh()
    return catalog


def make_model_options(settings: Settings) -> ModelOptions:
    """Return the options of every model that has none of its own."""
    try:
        get_factory(settings.engine)
    except ValueError as error:
        raise StartupError(str(error)) from None
    tools, reasoning = get_format_overrides(settings)
    return ModelOptions(
        engine=settings.engine,
        context=settings.context or None,
        slots=settings.slots,
        threads=settings.threads or None,
        gpu_layers=settings.gpu_layers if settings.gpu_layers >= 0 else None,
        chat_template=settings.chat_template or None,
        format=tools,
        reasoning_format=reasoning,
        lora=dict(_split_adapter(pair) for pair in settings.lora),
    )


def make_policy(settings: Settings) -> ModelPolicy:
    return ModelPolicy(
        memory=settings.memory,
        keep_alive=settings.keep_alive,
        wait=settings.load_wait,
        any_model=settings.any_model,
    )


def get_format_overrides(settings: Settings) -> FormatOverrides:
    """Return the formats that the operator chose; an unknown name is a `StartupError`."""
    overrides = settings.format or None, settings.reasoning_format or None
    try:
        check_names(*overrides)
    except ValueError as error:
        raise StartupError(str(error)) from None
    return overrides


def read_template(template: object) -> str | None:
    """Return a template's source, given as text or as a `Path` to a file."""
    if isinstance(template, Path):
        return template.read_text(encoding="utf-8-sig")
    return None if template is None else str(template)


def make_remote_tools(settings: Settings) -> RemoteToolsConfig:
    """Return the MCP servers that requests may use, and the limits for their tools."""
    try:
        url_guard, servers = UrlGuard(settings.mcp_hosts), client.parse_servers(settings.mcp)
    except (UrlRejected, ValueError) as error:
        raise StartupError(str(error)) from None
    if not client.is_installed():
        if servers:
            raise StartupError("MCP servers need `pip install dragoman[mcp]`.")
        return RemoteToolsConfig()
    timeout = settings.mcp_timeout
    limits = RemoteToolLimits(
        rounds=settings.mcp_rounds, seconds=5 * timeout, output_chars=max(settings.mcp_output, 0)
    )
    return RemoteToolsConfig(lambda: client.McpClient(url_guard, timeout), servers, limits)


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


def _split_adapter(pair: str) -> tuple[str, str]:
    name, equals, path = pair.partition("=")
    if not (name and equals and path):
        raise StartupError(f"--lora takes NAME=PATH, not {pair!r}.")
    return name, path
