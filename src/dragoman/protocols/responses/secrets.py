"""Remove secrets from tools: they are for one request alone and are neither stored nor shown."""

from __future__ import annotations

from urllib.parse import urlsplit

from dragoman.types import Json

SECRET_FIELDS = frozenset({"authorization", "headers", "domain_secrets"})
REDACTED = "<redacted>"


def remove_secrets(tool: Json) -> Json:
    """Return a tool as it may be shown, without credentials."""
    if isinstance(tool, list):
        return [remove_secrets(value) for value in tool]
    if not isinstance(tool, dict):
        return tool
    shown = {name: value for name, value in tool.items() if str(name).lower() not in SECRET_FIELDS}
    if tool.get("type") in ("function", "custom"):  # a schema may well mention headers
        return shown
    shown = {name: remove_secrets(value) for name, value in shown.items()}
    if isinstance(url := shown.get("server_url"), str):
        shown["server_url"] = redact_url(url)
    return shown


def redact_url(url: str) -> str:
    """Return the server of a URL: user names, paths and queries may contain keys."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return REDACTED
    host = f"[{host}]" if ":" in host else host
    server = f"{parts.scheme}://{host}" + (f":{port}" if port else "")
    is_bare = parts.path in ("", "/") and not (parts.query or parts.fragment)
    return server if is_bare else f"{server}/{REDACTED}"
