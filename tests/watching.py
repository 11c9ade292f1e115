"""Asks a server whether it lives, over and over: `python -m tests.watching URL`.

It is a process of its own, so that what it measures is the server and not the tests that trouble
it. When its input ends it prints how long each answer took, and what was no answer, as JSON.
"""

from __future__ import annotations

import gc
import http.client
import json
import select
import sys
import time
from urllib.parse import urlsplit

PAUSE = 0.01


def watch(host: str, port: int) -> dict[str, list[float] | list[str]]:
    """Until the input ends."""
    latencies: list[float] = []
    failures: list[str] = []
    connection = http.client.HTTPConnection(host, port, timeout=60)
    while not select.select([sys.stdin], [], [], PAUSE)[0]:
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
    connection.close()
    return {"latencies": latencies, "failures": failures}


if __name__ == "__main__":
    gc.disable()
    place = urlsplit(sys.argv[1])
    print(json.dumps(watch(str(place.hostname), int(place.port or 80))))
