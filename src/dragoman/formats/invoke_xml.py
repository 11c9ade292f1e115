"""Invoke elements without a prefix, written by models trained on other assistants' output."""

from dragoman.output.spec import MarkerPair, TaggedArguments, ToolFormat

TOOLS = ToolFormat(
    name="invoke_xml",
    models="models tuned on transcripts with `function_calls` elements",
    example=(
        '<function_calls>\n<invoke name="f">\n<parameter name="a">1</parameter>\n</invoke>\n'
        "</function_calls>"
    ),
    section=MarkerPair(open=("<function_calls>",), close=("</function_calls>",)),
    call=MarkerPair(open=("<invoke name=",), close=("</invoke>",)),
    bodies=(
        TaggedArguments(
            spellings=('"{name}"',),
            key=MarkerPair(open=("<parameter name=",), close=(">",)),
            key_spelling='"{key}"',
            value=MarkerPair(close=("</parameter>",)),
            trim="none",
        ),
    ),
)
