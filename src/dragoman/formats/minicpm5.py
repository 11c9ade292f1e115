"""An element for every call, without a wrapper; values may stand in CDATA."""

from dragoman.output.spec import GAP, Pair, Tagged, Tools

TOOLS = Tools(
    name="minicpm5",
    models="MiniCPM5",
    example='<function name="f"><param name="a">1</param></function>',
    section=Pair(open=(f"<function{GAP}name=",), close=("</function>",)),
    bodies=(
        Tagged(
            written=('"{name}"',),
            key=Pair(open=(f"<param{GAP}name=",), close=(">",)),
            key_written='"{key}"',
            value=Pair(close=("</param>",)),
            cdata=True,
            inner=True,
        ),
    ),
)
