"""Nested elements; a marker precedes every tag."""

from dragoman.output.spec import MarkerPair, NestedElements, ToolFormat

MARK = "]<]minimax[>["

TOOLS = ToolFormat(
    name="minimax_m3",
    models="MiniMax M3",
    example=(
        f'{MARK}<tool_call>\n{MARK}<invoke name="f">{MARK}<a>1{MARK}</a>{MARK}</invoke>\n'
        f"{MARK}</tool_call>"
    ),
    section=MarkerPair(open=(f"{MARK}<tool_call>",), close=(f"{MARK}</tool_call>",)),
    call=MarkerPair(open=(f"{MARK}<invoke name=",), close=(f"{MARK}</invoke>",)),
    bodies=(NestedElements(name_ends=(">",), spellings=('"{name}"',), prefix=MARK),),
)
