"""Like `glm45`, in a list; each tag may carry the model's suffix."""

from dragoman.output.spec import SUFFIX, MarkerPair, TaggedArguments, ToolFormat

BODY = TaggedArguments(
    name_ends=(f"<tool_sep{SUFFIX}>",),
    name_pattern=r"(?P<name>[^\s<>{}]+)",
    key=MarkerPair(open=(f"<arg_key{SUFFIX}>",), close=(f"</arg_key{SUFFIX}>",)),
    value=MarkerPair(open=(f"<arg_value{SUFFIX}>",), close=(f"</arg_value{SUFFIX}>",)),
    trim="none",
)
TOOLS = ToolFormat(
    name="hy_v3",
    models="Hunyuan Hy3",
    example=(
        "<tool_calls>\n<tool_call>f<tool_sep>\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n"
        "</tool_call>\n</tool_calls>"
    ).replace(">", f"{SUFFIX}>"),
    section=MarkerPair(open=(f"<tool_calls{SUFFIX}>",), close=(f"</tool_calls{SUFFIX}>",)),
    call=MarkerPair(open=(f"<tool_call{SUFFIX}>",), close=(f"</tool_call{SUFFIX}>",)),
    bodies=(BODY,),
    section_optional=True,
    suffixes=("", ":opensource"),
    ignored_after_call=(f"<｜hy_eos{SUFFIX}｜>",),
    aliases=("hunyuan",),
)
