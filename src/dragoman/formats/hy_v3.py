"""Like `glm45`, in a list; each tag may carry the model's suffix."""

from dragoman.output.spec import MarkerPair, TaggedArguments, ToolFormat

SUFFIXES = ("", ":opensource")


def tags(name: str) -> tuple[str, ...]:
    return tuple(f"<{name}{suffix}>" for suffix in SUFFIXES)


TOOLS = ToolFormat(
    name="hy_v3",
    models="Hunyuan Hy3",
    example=(
        "<tool_calls>\n<tool_call>f<tool_sep>\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n"
        "</tool_call>\n</tool_calls>"
    ),
    section=MarkerPair(open=tags("tool_calls"), close=tags("/tool_calls")),
    call=MarkerPair(open=tags("tool_call"), close=tags("/tool_call")),
    bodies=(
        TaggedArguments(
            name_ends=tags("tool_sep"),
            name_pattern=r"(?P<name>[^\s<>{}]+)",
            key=MarkerPair(open=tags("arg_key"), close=tags("/arg_key")),
            value=MarkerPair(open=tags("arg_value"), close=tags("/arg_value")),
            trim="none",
            implicit_end=True,
        ),
    ),
    section_optional=True,
    ignored_after_call=("<｜hy_eos｜>", "<｜hy_eos:opensource｜>"),
)
