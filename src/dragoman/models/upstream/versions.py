"""Request fields that a version of a server ignores, though it answers 200.

vLLM and llama-server ignore unknown fields. A version that is not known is taken for a new one; the
engine also checks what it gets (ids in the first answer, as many choices as it asked for).
"""

from __future__ import annotations

import re

from dragoman.models.upstream.server_info import ServerInfo

# kind -> field of a job -> the first version that honours it
FIRST_VERSIONS: dict[str, dict[str, tuple[int, ...]]] = {
    "vllm": {"token_ids": (0, 10, 2), "grammars": (0, 11, 0), "cache_scopes": (0, 8, 5)},
    "sglang": {"seed": (0, 5, 3), "cache_scopes": (0, 5, 3)},
    "llama-server": {"token_ids": (4300,)},
}


def parse_version(version: str) -> tuple[int, ...]:
    """Return the numbers of a version such as 0.10.2rc1 or b7312-1a2b3c; () is unknown."""
    match = re.match(r"[vb]?(\d+(?:\.\d+)*)", version)
    numbers = tuple(map(int, match[1].split("."))) if match else ()
    return numbers if any(numbers) else ()


def list_ignored_fields(info: ServerInfo) -> tuple[str, ...]:
    """Return what this version of the server ignores."""
    version = parse_version(info.version)
    known = FIRST_VERSIONS.get(info.kind, {})
    ignored = [field for field, first in known.items() if version and version < first]
    if not info.deterministic_seeds and "seed" not in ignored:
        ignored.append("seed")
    return tuple(ignored)


def can_return_ids(version: str) -> bool:
    """Whether `/v1/completions` of this version of vLLM returns token ids."""
    numbers = parse_version(version)
    return not numbers or numbers >= FIRST_VERSIONS["vllm"]["token_ids"]
