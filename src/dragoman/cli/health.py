"""`dragoman health`: check that the running server serves requests, for probes of containers."""

from __future__ import annotations

import argparse

from dragoman.cli.client.client import read_error
from dragoman.cli.client.connect import make_transport
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
    response = make_transport(settings).send("GET", "/health/ready")
    if response.status != 200:
        raise read_error(response)
    response.close()
    print("ready")
