"""Asks a server whether it lives, over and over: `python -m tests.support.health_probe URL PID`.

It is a process of its own, so that what it measures is the server and not the tests that trouble
it. When its input ends it prints as JSON how long each answer took, how much of that the server and
it itself waited for a processor that another process had, and what was no answer.
"""

from __future__ import annotations

import gc
import http.client
import json
import os
import select
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

PAUSE = 0.01


def waited(*pids: int) -> float:
    """Seconds that processes were ready and did not run, up to now."""
    spent = (Path(f"/proc/{pid}/schedstat").read_text().split()[1] for pid in pids)
    return sum(map(int, spent)) / 1e9


def watch(host: str, port: int, server: int) -> dict[str, list[float] | list[str]]:
    """Until the input ends."""
    latencies: list[float] = []
    own: list[float] = []  # the same without waiting for a processor
    failures: list[str] = []
    connection = http.client.HTTPConnection(host, port, timeout=60)
    while not select.select([sys.stdin], [], [], PAUSE)[0]:
        before = waited(server, os.getpid())
        begun = time.perf_counter()
        try:
            connection.request("GET", "/health/live")
            response = connection.getresponse()
            response.read()
            if response.status != 200:
                failures.append(str(response.status))
        except (OSError, http.client.HTTPException) as error:
            failures.append(repr(error))
            connection.close()
        latencies.append(time.perf_counter() - begun)
        own.append(latencies[-1] - (waited(server, os.getpid()) - before))
    connection.close()
    return {"latencies": latencies, "own": own, "failures": failures}


if __name__ == "__main__":
    gc.disable()
    place = urlsplit(sys.argv[1])
    print(json.dumps(watch(str(place.hostname), int(place.port or 80), int(sys.argv[2]))))
