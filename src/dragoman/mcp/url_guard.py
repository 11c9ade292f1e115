"""The guard against requests that make this server connect to internal hosts (SSRF).

A client's request may only name hosts of the public internet, written in canonical form; everything
else is rejected before anything is sent. Host names are resolved here and nowhere else, and the
connection goes to an address that was checked, so a name that resolves to another address a moment
later gains nothing. Hosts that the operator allows are not checked.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import TypeAlias

from msgspec import Struct

DEFAULT_PORTS = {"http": 80, "https": 443}
# the message does not quote the host, which may contain a secret
NOT_CANONICAL = "The host of the URL is not in canonical form."
_NAME = re.compile(
    r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)*"
)
_IPV4 = re.compile(r"(0|[1-9][0-9]{0,2})(\.(0|[1-9][0-9]{0,2})){3}")
_IPV6 = re.compile(r"\[([0-9a-f:.]+)\]")
_URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>[^/?#:\[\]]+|\[[^/?#\[\]]*\])(:(?P<port>[0-9]{1,5}))?([/?].*)?"
)
_ALLOWED = re.compile(r"(\[.*\]|[^:]*)(?::([0-9]{1,5}))?")
_PRINTABLE_ASCII = re.compile(r"[!-~]+")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_GLOBAL_UNICAST = IPv6Network("2000::/3")
# not public either, though not every version of `ipaddress` knows it: networks for protocols,
# networks that embed another address, and metadata services of clouds
_SPECIAL_NETWORKS: list[IPv4Network | IPv6Network] = [
    *map(IPv4Network, ("192.0.0.0/24", "192.88.99.0/24", "168.63.129.16/32")),
    *map(IPv6Network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")),
]

Resolve: TypeAlias = Callable[[str, int], Awaitable[list[str]]]


class UrlRejected(Exception):
    """A URL that a request must not use; the message is for the client."""


class Endpoint(Struct, frozen=True):
    """The host and port of a URL."""

    host: str  # a name or an address, in lower case, without brackets
    port: int


def parse_endpoint(url: str) -> Endpoint:
    """Return the host and port of a URL in canonical form. Raises `UrlRejected`."""
    if not _PRINTABLE_ASCII.fullmatch(url) or "\\" in url:
        raise UrlRejected("The URL must be plain ASCII, without spaces and backslashes.")
    match = _URL.fullmatch(url[:8].lower() + url[8:])
    if match is None:
        raise UrlRejected(
            "The URL must be `http://` or `https://`, a host, and optionally a port and a path."
        )
    if "@" in match["host"]:
        raise UrlRejected("The URL must not contain a name or password: use `authorization`.")
    port = int(match["port"] or DEFAULT_PORTS[match["scheme"]])
    if not 0 < port < 65536:
        raise UrlRejected("The port of the URL must be between 1 and 65535.")
    return Endpoint(normalize_host(match["host"]), port)


def normalize_host(text: str) -> str:
    """Return a host in the one spelling that every URL parser understands alike."""
    host = text.lower()
    bracketed = _IPV6.fullmatch(host)
    try:
        if bracketed is not None:
            return str(IPv6Address(bracketed[1]))
        if _IPV4.fullmatch(host):
            return str(IPv4Address(host))
    except ValueError:
        raise UrlRejected(NOT_CANONICAL) from None
    # some parsers take a name whose last label is a number for an address
    if not _NAME.fullmatch(host) or len(host) > 253 or _NUMBER.fullmatch(host.rpartition(".")[2]):
        raise UrlRejected(NOT_CANONICAL)
    return host


def is_public(address: str) -> bool:
    """Whether an address belongs to the public internet."""
    parsed = ip_address(address)
    if parsed.version == 6 and parsed not in _GLOBAL_UNICAST:
        return False
    special = any(parsed in network for network in _SPECIAL_NETWORKS)
    return parsed.is_global and not (parsed.is_multicast or parsed.is_reserved or special)


def parse_allowed_host(text: str) -> tuple[str, int | None]:
    """Parse the operator's HOST, HOST:PORT or [ADDRESS]:PORT."""
    match = _ALLOWED.fullmatch(text)
    host, digits = (match[1], match[2]) if match is not None else (f"[{text}]", None)
    port = int(digits) if digits else None
    error = UrlRejected(f"`{text[:100]}` is not HOST or HOST:PORT.")
    if port is not None and not 0 < port < 65536:
        raise error
    try:
        return normalize_host(host), port
    except UrlRejected:
        raise error from None


async def resolve_host(host: str, port: int) -> list[str]:
    """Return the addresses of a host, best first."""
    loop = asyncio.get_running_loop()
    entries = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in entries))


async def look_up_addresses(endpoint: Endpoint, resolve: Resolve) -> list[str]:
    """Return the addresses of an endpoint, whose host may be one itself; none if there are none."""
    try:
        return [str(ip_address(endpoint.host))]
    except ValueError:
        pass
    try:
        addresses = await resolve(endpoint.host, endpoint.port)
        return [str(ip_address(address)) for address in addresses]
    except (OSError, UnicodeError, ValueError):
        return []


class UrlGuard:
    """Decides which endpoints may be connected to."""

    def __init__(self, allowed: Iterable[str] = (), resolve: Resolve = resolve_host) -> None:
        self._allowed = {parse_allowed_host(host) for host in allowed}
        self._resolve_host = resolve

    def is_allowed(self, endpoint: Endpoint) -> bool:
        """Whether the operator allows it, whatever its address."""
        return not self._allowed.isdisjoint({(endpoint.host, None), (endpoint.host, endpoint.port)})

    async def resolve(self, endpoint: Endpoint) -> list[str]:
        """Return the addresses to connect to, and no others. Raises `UrlRejected`."""
        if self.is_allowed(endpoint):
            return [endpoint.host]
        addresses = await look_up_addresses(endpoint, self._resolve_host)
        # one message for all cases: clients must not learn which internal names exist
        if not addresses or not all(map(is_public, addresses)):
            raise UrlRejected(f"`{endpoint.host[:100]}` is not a public host that can be reached.")
        return addresses
