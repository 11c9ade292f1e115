"""The HTTP server in the wheel of our default engine, as a peer.

Run as `python -m bench.xllamacpp_server PORT MODEL SLOTS CONTEXT`.
"""

from __future__ import annotations

import signal
import sys


def main(port: int, model: str, slots: int, context: int) -> None:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = model
    params.hostnames = ["127.0.0.1"]
    params.port = port
    params.n_parallel = slots
    params.n_ctx = slots * context
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(params)
    assert server.listening_address
    signal.pause()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
