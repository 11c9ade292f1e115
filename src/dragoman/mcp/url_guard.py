"""Places: where a request may have this server go.

Whoever wrote a request may not be a friend. So it may only name hosts of the public internet,
plainly written; whatever else it names is refused before anything is sent. A name is looked up here
and nowhere else: the connection goes to an address that was looked at, so a name that means another
place a moment later gains nothing. Hosts that the operator allows are left alone.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import TypeAlias

from msgspec import Struct

PORTS = {"http": 80, "https": 443}
ODD = "The host of the address is not plainly written."  # it may hold a secret and is not quoted
_NAME = re.compile(
    r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)*"
)
_FOUR = re.compile(r"(0|[1-9][0-9]{0,2})(\.(0|[1-9][0-9]{0,2})){3}")
_SIX = re.compile(r"\[([0-9a-f:.]+)\]")
_URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>[^/?#:\[\]]+|\[[^/?#\[\]]*\])(:(?P<port>[0-9]{1,5}))?([/?].*)?"
)
_ALLOWED = re.compile(r"(\[.*\]|[^:]*)(?::([0-9]{1,5}))?")
_PLAIN = re.compile(r"[!-~]+")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_UNICAST = IPv6Network("2000::/3")
# not public either, though not every version of `ipaddress` says so: what is for protocols, what
# wraps another address, and what a cloud tells its own machines
_APART: list[IPv4Network | IPv6Network] = [
    *map(IPv4Network, ("192.0.0.0/24", "192.88.99.0/24", "168.63.129.16/32")),
    *map(IPv6Network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")),
]

Resolve: TypeAlias = Callable[[str, int], Awaitable[list[str]]]


class UrlRejected(Exception):
    """A place that a request may not name; the message is for the client."""


class Endpoint(Struct, frozen=True):
    """Whom a URL is about."""

    host: str  # a name or an address, in small letters, without brackets
    port: int


def parse_endpoint(url: str) -> Endpoint:
    """Whom a URL is about, if it is plainly written."""
    if not _PLAIN.fullmatch(url) or "\\" in url:
        raise UrlRejected(
            "The address must be written in plain ASCII, without spaces and backslashes."
        )
    found = _URL.fullmatch(url[:8].lower() + url[8:])
    if found is None:
        raise UrlRejected(
            "The address must be `http://` or `https://`, a host, perhaps a port, a path."
        )
    if "@" in found["host"]:
        raise UrlRejected("The address must not hold a name or a password: use `authorization`.")
    port = int(found["port"] or PORTS[found["scheme"]])
    if not 0 < port < 65536:
        raise UrlRejected("The port of the address must be between 1 and 65535.")
    return Endpoint(normalise_host(found["host"]), port)


def normalise_host(said: str) -> str:
    """A host in the one spelling that everybody reads alike."""
    host = said.lower()
    bracketed = _SIX.fullmatch(host)
    try:
        if bracketed is not None:
            return str(IPv6Address(bracketed[1]))
        if _FOUR.fullmatch(host):
            return str(IPv4Address(host))
    except ValueError:
        raise UrlRejected(ODD) from None
    # a last part that is a number makes an address of it, for some readers
    if not _NAME.fullmatch(host) or len(host) > 253 or _NUMBER.fullmatch(host.rpartition(".")[2]):
        raise UrlRejected(ODD)
    return host


def is_public(address: str) -> bool:
    """Whether an address is one of the public internet's."""
    found = ip_address(address)
    if found.version == 6 and found not in _UNICAST:
        return False
    apart = found.is_multicast or found.is_reserved or any(found in net for net in _APART)
    return found.is_global and not apart


def parse_allowed_host(said: str) -> tuple[str, int | None]:
    """HOST, HOST:PORT or [ADDRESS]:PORT, as an operator writes it."""
    found = _ALLOWED.fullmatch(said)
    host, digits = (found[1], found[2]) if found is not None else (f"[{said}]", None)
    port = int(digits) if digits else None
    wrong = UrlRejected(f"`{said[:100]}` is not HOST or HOST:PORT.")
    if port is not None and not 0 < port < 65536:
        raise wrong
    try:
        return normalise_host(host), port
    except UrlRejected:
        raise wrong from None


async def resolve_host(host: str, port: int) -> list[str]:
    """The addresses of a name, best first."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class UrlGuard:
    """Which places may be gone to."""

    def __init__(self, allowed: Iterable[str] = (), resolve: Resolve = resolve_host) -> None:
        self._allowed = {parse_allowed_host(one) for one in allowed}
        self._resolve = resolve

    def is_allowed(self, wanted: Endpoint) -> bool:
        """Whether the operator lets requests name it, whatever it is."""
        return (wanted.host, None) in self._allowed or (wanted.host, wanted.port) in self._allowed

    async def resolve(self, wanted: Endpoint) -> list[str]:
        """Where to connect to; nothing else may be connected to for it."""
        if self.is_allowed(wanted):
            return [wanted.host]
        try:
            found = [str(ip_address(wanted.host))]
        except ValueError:
            found = await self._found(wanted)
        # one sentence for all: whether a name is known inside is nobody's business outside
        if not found or not all(map(is_public, found)):
            raise UrlRejected(f"`{wanted.host[:100]}` is not a public host that can be reached.")
        return found

    async def _found(self, wanted: Endpoint) -> list[str]:
        try:
            found = await self._resolve(wanted.host, wanted.port)
            return [str(ip_address(one)) for one in found]
        except (OSError, UnicodeError, ValueError):
            return []
