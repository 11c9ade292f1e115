"""Variables of the environment that pass sockets to this process.

systemd passes listening sockets (`LISTEN_FDS`, for this process only) and the address of a socket
for its notifications (`NOTIFY_SOCKET`). A server that is upgraded passes its listening sockets, and
one for messages to it, to its successor (`DRAGOMAN_HANDOVER`). Variables that are taken are
removed, so that child processes do not get them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, MutableMapping

HANDOVER = "DRAGOMAN_HANDOVER"
FIRST_LISTEN_FD = 3


def take_listen_fds(environment: MutableMapping[str, str] = os.environ) -> list[int]:
    """Return the descriptors of listening sockets that systemd passes."""
    pid, count = environment.pop("LISTEN_PID", ""), environment.pop("LISTEN_FDS", "")
    environment.pop("LISTEN_FDNAMES", None)
    if pid != str(os.getpid()) or not count.isdecimal():
        return []
    return list(range(FIRST_LISTEN_FD, FIRST_LISTEN_FD + int(count)))


def take_handover(environment: MutableMapping[str, str] = os.environ) -> list[int]:
    """Return the descriptors that the previous server passes; the first is for messages to it."""
    numbers = environment.pop(HANDOVER, "").split(",")
    return [int(number) for number in numbers if number.isdecimal()]


def make_handover_environment(descriptors: Iterable[int]) -> dict[str, str]:
    """Return the environment of a process that gets these descriptors from this one."""
    return {**os.environ, HANDOVER: ",".join(map(str, descriptors))}


def get_notify_socket(environment: MutableMapping[str, str] = os.environ) -> str | None:
    """Return the address of the socket that systemd reads notifications from."""
    return environment.get("NOTIFY_SOCKET")
