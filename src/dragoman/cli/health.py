"""`dragoman health`: check that the running server serves requests, for probes of containers."""

from __future__ import annotations

import argparse

from dragoman.cli.client.client import read_error
from dragoman.cli.client.connect import make_transport
from dragoman.cli.client.transport import RequestFailed
from dragoman.cli.console.flags import CLIENT, add_flags, add_usage
from dragoman.config import Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_usage(
        parser,
        "[FLAGS]",
        examples=("dragoman health", "dragoman health --url http://gpu-box:8000"),
    )
    add_flags(parser, CLIENT)


def run(arguments: argparse.Namespace, settings: Settings) -> None:
    """Print `ready`, or fail with what the server waits for."""
    transport = make_transport(settings)
    response = transport.send("GET", "/health/ready")
    if response.status != 200:
        error = read_error(response)
        if response.status == 404 and error.code is None:
            raise RequestFailed(f"The server at {transport.address} is not a dragoman server.")
        raise error
    response.close()
    print("ready")
