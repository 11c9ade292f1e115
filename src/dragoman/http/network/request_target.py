"""The target of a request in absolute form: `GET http://host/path HTTP/1.1`.

Clients send it to proxies, and every server must understand it (RFC 9112, section 3.2.2): the host
in the target counts, and the Host header is ignored. So the target becomes a path, and its host
takes the place of the header, before anything reads either. A header that is missing, repeated or
malformed stays as it is, since the request is invalid then, whatever its target is.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

import httptools

from dragoman.http.asgi import Header, Scope

HOST = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[\w.-]*)(:\d{1,5})?", re.ASCII)
_ABSOLUTE = re.compile(rb"(?P<scheme>[A-Za-z][\w+.-]*)://(?P<authority>[^/?#]*)(?P<path>.*)", re.S)
_SCHEMES = (b"http", b"https")


def convert_target(url: bytes, headers: list[Header], version: str) -> bytes:
    """Return the target as a path; put the host of an absolute one into the headers.

    Raises `HttpParserInvalidURLError` for a target without a host, with user information, or of
    another scheme.
    """
    absolute = None if url.startswith(b"/") else _ABSOLUTE.match(url)
    if absolute is None:
        return url
    authority = absolute["authority"]
    if absolute["scheme"].lower() not in _SCHEMES or not authority or b"@" in authority:
        raise httptools.HttpParserInvalidURLError("invalid request target")
    places = [index for index, (name, _) in enumerate(headers) if name == b"host"]
    if len(places) == 1 and HOST.fullmatch(headers[places[0]][1]):
        headers[places[0]] = (b"host", authority)
    elif not places and version == "1.0":
        headers.append((b"host", authority))
    path = absolute["path"]
    return path if path.startswith(b"/") else b"/" + path


def set_target(scope: Scope, url: bytes, root_path: str) -> None:
    """Put the path and the query of a target into the scope of its request."""
    parsed = httptools.parse_url(url)
    path = parsed.path.decode("ascii")
    scope["path"] = root_path + (unquote(path) if "%" in path else path)
    scope["raw_path"] = root_path.encode("ascii") + parsed.path
    scope["query_string"] = parsed.query or b""
