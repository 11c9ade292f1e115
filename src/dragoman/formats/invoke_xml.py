"""Invoke elements without a prefix, as models write them that learnt from other assistants."""

from dragoman.output.spec import Pair, Tagged, Tools

TOOLS = Tools(
    name="invoke_xml",
    models="models tuned on transcripts with `function_calls` elements",
    example=(
        '<function_calls>\n<invoke name="f">\n<parameter name="a">1</parameter>\n</invoke>\n'
        "</function_calls>"
    ),
    section=Pair(open=("<function_calls>",), close=("</function_calls>",)),
    call=Pair(open=("<invoke name=",), close=("</invoke>",)),
    bodies=(
        Tagged(
            written=('"{name}"',),
            key=Pair(open=("<parameter name=",), close=(">",)),
            key_written='"{key}"',
            value=Pair(close=("</parameter>",)),
            trim="none",
            inner=True,
        ),
    ),
)
