"""Elements within elements; a mark stands before every tag."""

from dragoman.output.spec import Nested, Pair, Tools

MARK = "]<]minimax[>["

TOOLS = Tools(
    name="minimax_m3",
    models="MiniMax M3",
    example=(
        f'{MARK}<tool_call>\n{MARK}<invoke name="f">{MARK}<a>1{MARK}</a>{MARK}</invoke>\n'
        f"{MARK}</tool_call>"
    ),
    section=Pair(open=(f"{MARK}<tool_call>",), close=(f"{MARK}</tool_call>",)),
    call=Pair(open=(f"{MARK}<invoke name=",), close=(f"{MARK}</invoke>",)),
    bodies=(Nested(ends=(">",), written=('"{name}"',), prefix=MARK),),
)
