"""Nested elements; a marker precedes every tag."""

from dragoman.output.spec import MarkerPair, NestedElements, ToolFormat

PREFIX = "]<]minimax[>["

TOOLS = ToolFormat(
    name="minimax_m3",
    models="MiniMax M3",
    example=(
        f'{PREFIX}<tool_call>\n{PREFIX}<invoke name="f">{PREFIX}<a>1{PREFIX}</a>{PREFIX}</invoke>\n'
        f"{PREFIX}</tool_call>"
    ),
    section=MarkerPair(open=(f"{PREFIX}<tool_call>",), close=(f"{PREFIX}</tool_call>",)),
    call=MarkerPair(open=(f"{PREFIX}<invoke name=",), close=(f"{PREFIX}</invoke>",)),
    bodies=(NestedElements(name_ends=(">",), spellings=('"{name}"',), prefix=PREFIX),),
    section_optional=True,
    aliases=("minimax-m3",),
)
