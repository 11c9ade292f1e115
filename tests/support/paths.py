"""Directories that tests read from."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
ROOT = TESTS.parent
TEMPLATES = TESTS / "templates"
FORMAT_CASES = TESTS / "formats"
