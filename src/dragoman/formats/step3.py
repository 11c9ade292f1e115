"""An `invoke` element between markers."""

from dragoman.output.spec import MarkerPair, TaggedArguments, ToolFormat

TOOLS = ToolFormat(
    name="step3",
    models="Step3",
    example=(
        "<｜tool_calls_begin｜>\n<｜tool_call_begin｜>function<｜tool_sep｜>"
        '<steptml:invoke name="f">'
        '<steptml:parameter name="a">1</steptml:parameter></steptml:invoke><｜tool_call_end｜>\n'
        "<｜tool_calls_end｜>"
    ),
    section=MarkerPair(open=("<｜tool_calls_begin｜>",), close=("<｜tool_calls_end｜>",)),
    call=MarkerPair(
        open=(
            "<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=",
            "<｜tool_call_begin｜><steptml:invoke name=",
        ),
        close=("</steptml:invoke><｜tool_call_end｜>", "</steptml:invoke>"),
    ),
    bodies=(
        TaggedArguments(
            spellings=('"{name}"',),
            key=MarkerPair(open=("<steptml:parameter name=",), close=(">",)),
            key_spelling='"{key}"',
            value=MarkerPair(close=("</steptml:parameter>",)),
        ),
    ),
    ignored_after_call=("<｜tool_call_end｜>",),
)
