"""As `minimax_m2`, in a wrapper of its own; the wrapper may also hold JSON."""

from dragoman.output.spec import Objects, Pair, Tagged, Tools

TOOLS = Tools(
    name="dots",
    models="dots",
    example=(
        '<dots_function_call>\n<invoke name="f">\n<parameter name="a">1</parameter>\n</invoke>\n'
        "</dots_function_call>"
    ),
    section=Pair(open=("<dots_function_call>",), close=("</dots_function_call>",)),
    call=Pair(open=("<invoke name=",), close=("</invoke>",)),
    bodies=(
        Tagged(
            written=('"{name}"',),
            key=Pair(open=("<parameter name=",), close=(">",)),
            key_written='"{key}"',
            value=Pair(close=("</parameter>",)),
            inner=True,
        ),
        Objects(),
    ),
)
