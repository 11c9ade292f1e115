"""An element for each call, without a wrapper; values may be CDATA."""

from dragoman.output.spec import GAP, MarkerPair, TaggedArguments, ToolFormat

TOOLS = ToolFormat(
    name="minicpm5",
    models="MiniCPM5",
    example='<function name="f"><param name="a">1</param></function>',
    section=MarkerPair(open=(f"<function{GAP}name=",), close=("</function>",)),
    bodies=(
        TaggedArguments(
            spellings=('"{name}"',),
            key=MarkerPair(open=(f"<param{GAP}name=",), close=(">",)),
            key_spelling='"{key}"',
            value=MarkerPair(close=("</param>",)),
            cdata=True,
        ),
    ),
)
