"""Every message says who it is for; calls stand in elements."""

from dragoman.output.spec import Header, Pair, Reasoning, Tagged, Tools

HEADER = Header(
    open=("<|start|>",),
    end=("<|message|>",),
    close=("<|eom|>", "<|eot|>"),
    begins=("to=",),
    routes=(
        (r"to=self\b", "reasoning"),
        (r"to=user\b", "text"),
        (r"to=(?P<name>[\w.-]+)", "call"),
        (r"", "text"),
    ),
    written=(
        ("reasoning", " to=self<|message|>"),
        ("text", " to=user<|message|>"),
        ("call", " to={name}<|message|>"),
    ),
    joint="<|start|>assistant",
)
TOOLS = Tools(
    name="muse_glimmer",
    models="Muse Glimmer",
    example=(
        ' to=f<|message|><atem:function_calls>\n<atem:invoke name="f">\n'
        '<atem:parameter name="a">1</atem:parameter>\n</atem:invoke>\n</atem:function_calls><|eom|>'
    ),
    header=HEADER,
    section=Pair(open=("<atem:function_calls>",), close=("</atem:function_calls>",)),
    call=Pair(open=("<atem:invoke name=",), close=("</atem:invoke>",)),
    bodies=(
        Tagged(
            written=('"{name}"',),
            key=Pair(open=("<atem:parameter name=",), close=(">",)),
            key_written='"{key}"',
            value=Pair(close=("</atem:parameter>",)),
            trim="none",
            untyped="json",
            inner=True,
        ),
    ),
)
REASONING = Reasoning(
    name="muse_glimmer",
    models="Muse Glimmer",
    example=" to=self<|message|>thoughts<|eom|><|start|>assistant to=user<|message|>answer<|eot|>",
    header=HEADER,
)
