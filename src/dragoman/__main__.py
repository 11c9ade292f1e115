"""Runs the command line: `python -m dragoman`."""

from __future__ import annotations

from dragoman.cli.main import main

if __name__ == "__main__":
    main()
