"""The paths of what `make test-mcp` installs."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
MODULES = ROOT / ".mcp" / "node_modules"
NODE = str(MODULES / "node" / "bin" / "node")
SUITE = str(MODULES / "@modelcontextprotocol" / "conformance" / "dist" / "index.js")
EVERYTHING = str(MODULES / "@modelcontextprotocol" / "server-everything" / "dist" / "index.js")
