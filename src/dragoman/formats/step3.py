"""An invoked element between marks."""

from dragoman.output.spec import Pair, Tagged, Tools

TOOLS = Tools(
    name="step3",
    models="Step3",
    example=(
        "<｜tool_calls_begin｜>\n<｜tool_call_begin｜>function<｜tool_sep｜>"
        '<steptml:invoke name="f">'
        '<steptml:parameter name="a">1</steptml:parameter></steptml:invoke><｜tool_call_end｜>\n'
        "<｜tool_calls_end｜>"
    ),
    section=Pair(open=("<｜tool_calls_begin｜>",), close=("<｜tool_calls_end｜>",)),
    call=Pair(
        open=(
            "<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=",
            "<｜tool_call_begin｜><steptml:invoke name=",
        ),
        close=("</steptml:invoke><｜tool_call_end｜>", "</steptml:invoke>"),
    ),
    bodies=(
        Tagged(
            written=('"{name}"',),
            key=Pair(open=("<steptml:parameter name=",), close=(">",)),
            key_written='"{key}"',
            value=Pair(close=("</steptml:parameter>",)),
            inner=True,
        ),
    ),
    spare=("<｜tool_call_end｜>",),
)
