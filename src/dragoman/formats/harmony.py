"""Each message has a header with its channel and recipient."""

from dragoman.output.spec import MarkerPair, MessageHeader, NamedObject, ReasoningFormat, ToolFormat

HEADER = MessageHeader(
    open=("<|start|>", "<|channel|>"),
    end=("<|message|>",),
    close=("<|end|>", "<|return|>", "<|call|>"),
    answer_starts=("to=", "assistant to=", "assistant<|channel|>"),
    routes=(
        (
            r"to(?:=\s?|[:\s]\s?(?=functions\.))(?:functions\.)?(?P<name>(?!assistant\b)[\w.-]+)",
            "call",
        ),
        (r"analysis", "reasoning"),
        (r"", "text"),
    ),
    spellings=(
        ("reasoning", "<|channel|>analysis<|message|>"),
        ("text", "<|channel|>final<|message|>"),
        ("text", "<|channel|>commentary<|message|>"),
        *(
            ("call", spelling.format(to=to, channel=channel, kind=kind))
            for spelling in (
                "<|channel|>{channel} to={to}{kind}<|message|>",
                " to={to}<|channel|>{channel}{kind}<|message|>",
            )
            for to in ("functions.{name}", "{name}")
            for channel in ("commentary", "analysis")
            for kind in (" <|constrain|>json", " json", " code", "")
        ),
    ),
    separator="<|start|>assistant",
)
TOOLS = ToolFormat(
    name="harmony",
    models="gpt-oss",
    example='<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>',
    header=HEADER,
    call=MarkerPair(close=("<|call|>", "<|end|>", "<|return|>")),
    bodies=(NamedObject(),),
    aliases=("openai", "gpt-oss", "gpt_oss"),
)
REASONING = ReasoningFormat(
    name="harmony",
    models="gpt-oss",
    example=(
        "<|channel|>analysis<|message|>reasoning<|end|>"
        "<|start|>assistant<|channel|>final<|message|>answer<|return|>"
    ),
    header=HEADER,
    aliases={"openai_gptoss": False, "gpt-oss": False, "gpt_oss": False, "beam": False},
)
