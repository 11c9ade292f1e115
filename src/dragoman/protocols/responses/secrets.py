"""What a tool has in it that is for this request alone: it is neither kept nor shown."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

NAMES = frozenset({"authorization", "headers", "domain_secrets"})
REDACTED = "<redacted>"


def remove_secrets(tool: Any) -> Any:
    """A tool as it may be shown. What gives access to a server is left out."""
    if isinstance(tool, list):
        return [remove_secrets(one) for one in tool]
    if not isinstance(tool, dict):
        return tool
    shown = {name: one for name, one in tool.items() if str(name).lower() not in NAMES}
    if tool.get("type") in ("function", "custom"):  # a schema may well speak of headers
        return shown
    shown = {name: remove_secrets(one) for name, one in shown.items()}
    if isinstance(url := shown.get("server_url"), str):
        shown["server_url"] = redact_url(url)
    return shown


def redact_url(url: str) -> str:
    """The server of an address: names, paths and queries may hold keys."""
    try:
        found = urlsplit(url)
        host, port = found.hostname or "", found.port
    except ValueError:
        return REDACTED
    host = f"[{host}]" if ":" in host else host
    server = f"{found.scheme}://{host}" + (f":{port}" if port else "")
    plain = found.path in ("", "/") and not (found.query or found.fragment)
    return server if plain else f"{server}/{REDACTED}"
