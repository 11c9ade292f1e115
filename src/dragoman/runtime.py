"""Putting the parts together: settings and models in, a running server out."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from dragoman import config
from dragoman.config import Settings
from dragoman.engines import get_factory
from dragoman.engines.adapter import adapt
from dragoman.errors import DragomanError
from dragoman.http import server
from dragoman.http.app import App
from dragoman.http.auth import ApiKeys
from dragoman.mcp import client
from dragoman.mcp.url_guard import UrlGuard, UrlRejected
from dragoman.models.catalog import ModelCatalog
from dragoman.models.loaders.gguf import load
from dragoman.models.mapping import ModelOptions
from dragoman.models.output_format import FormatOverrides, check_names
from dragoman.models.pull import DEFAULT_ALIASES
from dragoman.models.registry import ModelPolicy, ModelRegistry
from dragoman.responses.service import RemoteToolsConfig
from dragoman.responses.tool_rounds import RemoteToolLimits

BROUGHT = ("name", "chat_template")
# names that other servers have for the same
ALSO = {"tool_parser": "format", "reasoning_parser": "reasoning_format"}


class StartupError(Exception):
    """The server cannot start, and why; told to the operator as it is."""


def engine_app(engine: Any, options: dict[str, Any], local: bool) -> App:
    """An app over one engine that somebody brought."""
    settings = config.load(_by_our_names(options))
    if not settings.store:  # in somebody's program nothing is left behind unasked
        settings = replace(settings, store="sqlite://")
    models = ModelRegistry.from_engine(
        adapt(engine),
        options.get("name") or "default",
        aliases=settings.served_name,
        chat_template=template_source(options.get("chat_template")),
        formats=formats(settings),
        policy=policy(settings),
    )
    return make_app(models, settings, local)


def _by_our_names(options: dict[str, Any]) -> dict[str, Any]:
    """Settings by the names that they have here. One that is said twice must be the same."""
    said: dict[str, Any] = {}
    for name, value in options.items():
        ours = ALSO.get(name, name)
        if name in BROUGHT or value is None:
            continue
        if said.setdefault(ours, value) != value:
            other = next(theirs for theirs, own in ALSO.items() if own == ours)
            raise StartupError(f"`{ours}` and `{other}` are the same, but say different things.")
    return said


def formats(settings: Settings) -> FormatOverrides:
    """What the operator says of tool calls and thoughts; names are checked before anything runs."""
    said = settings.format or None, settings.reasoning_format or None
    try:
        check_names(*said)
    except ValueError as error:
        raise StartupError(str(error)) from None
    return said


def template_source(said: str | Path | None) -> str | None:
    """A template given as source, or as a path to a file that holds it."""
    return said.read_text(encoding="utf-8-sig") if isinstance(said, Path) else said


def policy(settings: Settings) -> ModelPolicy:
    return ModelPolicy(
        memory=settings.memory,
        keep_alive=settings.keep_alive,
        wait=settings.load_wait,
        queue=settings.queue,
        any_model=settings.any_model,
    )


def make_app(models: ModelRegistry, settings: Settings, local: bool) -> App:
    """The app with its keys. `local` guards the Host header of a server on this machine."""
    file = Path(settings.api_key_file) if settings.api_key_file else None
    try:
        keys = ApiKeys(settings.api_key, settings.admin_key, file)
    except (OSError, UnicodeDecodeError):
        raise StartupError("The key file cannot be read.") from None
    except ValueError as error:
        raise StartupError(str(error)) from None
    if local and not settings.loopback and not keys.wanted and not settings.allow_open:
        raise StartupError(
            f"Listening on {settings.host} without an API key would let everyone in. "
            "Give --api-key, or --allow-open if that is what you want."
        )
    return App(models, settings, keys, local and settings.loopback, elsewhere(settings))


def elsewhere(settings: Settings) -> RemoteToolsConfig:
    """How remote tools are reached."""
    try:
        places, servers = UrlGuard(settings.mcp_hosts), client.parse_servers(settings.mcp)
    except (UrlRejected, ValueError) as error:
        raise StartupError(str(error)) from None
    if not client.is_installed():
        if servers:
            raise StartupError("Remote tools need `pip install dragoman[mcp]`.")
        return RemoteToolsConfig()
    each = settings.mcp_timeout
    bounds = RemoteToolLimits(
        rounds=settings.mcp_rounds, seconds=5 * each, output=max(settings.mcp_output, 0)
    )
    return RemoteToolsConfig(lambda: client.McpClient(places, each), servers, bounds)


def catalog(settings: Settings, model: str | None = None) -> ModelCatalog:
    """The models there are; the one named on the command line comes first."""
    root = settings.models_path
    root.mkdir(parents=True, exist_ok=True)
    file = Path(settings.models_file) if settings.models_file else root / "models.yaml"
    found = ModelCatalog(root, file, chosen(settings))
    found.refresh()
    if model is not None:
        wanted = found.resolve(model, paths=True)
        if wanted is None:
            raise StartupError(f"There is no model {model!r}. `dragoman list` shows what is there.")
        found.add(wanted, settings.served_name)
        found.refresh()
    return found


def chosen(settings: Settings) -> ModelOptions:
    """What the command line says of every model that says nothing itself."""
    try:
        get_factory(settings.engine)
    except ValueError as error:
        raise StartupError(str(error)) from None
    tools, reasoning = formats(settings)
    return ModelOptions(
        engine=settings.engine,
        context=settings.context or None,
        slots=settings.slots,
        threads=settings.threads or None,
        gpu_layers=settings.gpu_layers if settings.gpu_layers >= 0 else None,
        chat_template=settings.chat_template or None,
        format=tools,
        reasoning_format=reasoning,
        lora=dict(adapter_pair(pair) for pair in settings.lora),
    )


def adapter_pair(pair: str) -> tuple[str, str]:
    name, equals, path = pair.partition("=")
    if not (name and equals and path):
        raise StartupError(f"--lora wants NAME=PATH, not {pair!r}.")
    return name, path


def find_models(settings: Settings, model: str) -> ModelRegistry:
    return ModelRegistry(catalog(settings, model), load, policy(settings))


async def serve(app: App) -> None:
    """Serve until a signal says stop."""
    running = server.make(app, app.settings)
    server.settle()
    await running.serve()


async def serve_models(settings: Settings, model: str, say: Callable[[str], None]) -> None:
    """Serve models from files. The first one is loaded while the server already answers."""
    models = find_models(settings, model)
    app = make_app(models, settings, local=True)
    app.awaited = models.default_name
    running = server.make(app, settings, lambda url: say(f"Dragoman listens on {url}"))
    failed: list[DragomanError] = []

    async def preload() -> None:
        try:
            entry = await models.load(models.default_name, wait=float("inf"))
            server.settle()
            say(f"Serving {entry.id}. Press Ctrl-C to stop.")
            await app.state.signer()  # opens the store: what a dead server left is seen to
        except DragomanError as error:
            failed.append(error)
            running.should_exit = True

    loading = asyncio.create_task(preload())
    try:
        await running.serve()
    finally:
        loading.cancel()
    if failed:
        raise StartupError(failed[0].message)


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run on the fast event loop where there is one."""
    factory = None
    if sys.platform != "win32":
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main)


def default_model(settings: Settings) -> str:
    """The default model's name; it is fetched first if it is not there yet."""
    from dragoman.models.pull import Bar, pull

    bar = Bar(sys.stderr)
    pull(DEFAULT_ALIASES[0], settings.models_path, bar)
    bar.close()
    return DEFAULT_ALIASES[0]
