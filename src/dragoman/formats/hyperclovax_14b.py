"""A JSON list in a message of its own; reasoning is another message."""

from dragoman.output.spec import JsonObjects, MarkerPair, ReasoningFormat, ToolFormat

NEXT_MESSAGE = "<|im_end|>\n<|im_start|>assistant"
SOURCES = "NAVER's vLLM plugin; the 32B model writes calls as `glm45`"
TOOLS = ToolFormat(
    name="hyperclovax_14b",
    models="HyperCLOVA X SEED Think 14B",
    example=' -> tool/function_call\n[{"name": "f", "arguments": {"a": 1}}]',
    section=MarkerPair(open=(" -> tool/function_call\n",), close=("<|im_end|>",)),
    bodies=(JsonObjects(),),
    dropped=(f"{NEXT_MESSAGE}\n", NEXT_MESSAGE),
    ignored_after_call=("<|endofturn|>", "<|stop|>"),
    default_reasoning="hyperclovax_14b",
    aliases=("hyperclovax", "hyperclovax_seed_think_14b", "hcx"),
    evidence="parsers",
    sources=SOURCES,
)
REASONING = ReasoningFormat(
    name="hyperclovax_14b",
    models="HyperCLOVA X SEED Think 14B",
    example=f"/think\nreasoning{NEXT_MESSAGE}\nanswer",
    opens_at_start=("/think\n",),
    special_token_markers=True,
    close=(NEXT_MESSAGE, f"{NEXT_MESSAGE}\n"),
    aliases={"hyperclovax": False, "hyperclovax_seed_think_14b": False, "hcx": False},
    evidence="parsers",
    sources=SOURCES,
)
