"""Requests `/health/live` continuously: `python -m tests.support.health_probe URL PID`.

It runs in its own process, so that it measures the server and not the tests that load it. When its
input ends, it prints JSON: the latency of each request, the latency without the time that the
server and the probe waited for a CPU, and the failures.
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


def read_wait_time(*pids: int) -> float:
    """Return the seconds that processes were runnable but had to wait for a CPU, so far."""
    waits = (Path(f"/proc/{pid}/schedstat").read_text().split()[1] for pid in pids)
    return sum(map(int, waits)) / 1e9


def probe(host: str, port: int, server: int) -> dict[str, list[float] | list[str]]:
    """Send requests until the input ends."""
    latencies: list[float] = []
    own: list[float] = []  # latencies without the time waiting for a CPU
    failures: list[str] = []
    connection = http.client.HTTPConnection(host, port, timeout=60)
    while not select.select([sys.stdin], [], [], PAUSE)[0]:
        before = read_wait_time(server, os.getpid())
        started = time.perf_counter()
        try:
            connection.request("GET", "/health/live")
            response = connection.getresponse()
            response.read()
            if response.status != 200:
                failures.append(str(response.status))
        except (OSError, http.client.HTTPException) as error:
            failures.append(repr(error))
            connection.close()
        latencies.append(time.perf_counter() - started)
        own.append(latencies[-1] - (read_wait_time(server, os.getpid()) - before))
    connection.close()
    return {"latencies": latencies, "own": own, "failures": failures}


if __name__ == "__main__":
    gc.disable()
    address = urlsplit(sys.argv[1])
    print(json.dumps(probe(str(address.hostname), int(address.port or 80), int(sys.argv[2]))))
