"""Each message names its recipient; calls are elements."""

from dragoman.output.spec import (
    MarkerPair,
    MessageHeader,
    ReasoningFormat,
    TaggedArguments,
    ToolFormat,
)

HEADER = MessageHeader(
    open=("<|start|>",),
    end=("<|message|>",),
    close=("<|eom|>", "<|eot|>"),
    answer_starts=("to=",),
    routes=(
        (r"to=self\b", "reasoning"),
        (r"to=user\b", "text"),
        (r"to=(?P<name>[\w.-]+)", "call"),
        (r"", "text"),
    ),
    spellings=(
        ("reasoning", " to=self<|message|>"),
        ("text", " to=user<|message|>"),
        ("call", " to={name}<|message|>"),
    ),
    separator="<|start|>assistant",
)
TOOLS = ToolFormat(
    name="muse_glimmer",
    models="Muse Glimmer",
    example=(
        ' to=f<|message|><atem:function_calls>\n<atem:invoke name="f">\n'
        '<atem:parameter name="a">1</atem:parameter>\n</atem:invoke>\n</atem:function_calls><|eom|>'
    ),
    header=HEADER,
    section=MarkerPair(open=("<atem:function_calls>",), close=("</atem:function_calls>",)),
    call=MarkerPair(open=("<atem:invoke name=",), close=("</atem:invoke>",)),
    bodies=(
        TaggedArguments(
            spellings=('"{name}"',),
            key=MarkerPair(open=("<atem:parameter name=",), close=(">",)),
            key_spelling='"{key}"',
            value=MarkerPair(close=("</atem:parameter>",)),
            trim="none",
            untyped="json",
        ),
    ),
    section_optional=True,
    aliases=("muse",),
)
REASONING = ReasoningFormat(
    name="muse_glimmer",
    models="Muse Glimmer",
    example=" to=self<|message|>reasoning<|eom|><|start|>assistant to=user<|message|>answer<|eot|>",
    header=HEADER,
    aliases={"muse": False},
)
