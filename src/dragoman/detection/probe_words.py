"""The made-up words and tools of probe conversations.

Every word starts with `zq`, so that no template contains it.
"""

from __future__ import annotations

from dragoman.types import Json

WORD = "zq"  # starts every made-up word
QUESTION, NEXT_QUESTION, OTHER_ANSWER = "zqasked", "zqagain", "zqother"
ANSWER, REASONING, VALUE = "zqanswer", "zqthought", "zqvalue"

_FIELDS = {
    "zqplace": "string",
    "zqnumber": "integer",
    "zqflag": "boolean",
    "zqtree": "object",
    "zqlist": "array",
}
PROPERTIES: dict[str, Json] = {name: {"type": kind} for name, kind in _FIELDS.items()}
LOOKUP_TOOL, PING_TOOL = "zqlook", "zqping"
TOOLS: list[dict[str, Json]] = [
    {
        "type": "function",
        "function": {
            "name": LOOKUP_TOOL,
            "description": "Looks something up.",
            "parameters": {"type": "object", "properties": PROPERTIES, "required": ["zqplace"]},
        },
    },
    {
        "type": "function",
        "function": {
            "name": PING_TOOL,
            "description": "Does something.",
            "parameters": {"type": "object", "properties": {}, "required": []},
        },
    },
]
