"""Elements with an attribute for each argument: whether it is a string."""

from dragoman.output.spec import MarkerPair, TaggedArguments, ToolFormat


def make_example(prefix: str, section: str) -> str:
    """Write a call in elements whose names have a prefix."""
    return (
        f'<{prefix}{section}>\n<{prefix}invoke name="f">\n'
        f'<{prefix}parameter name="a" string="false">1</{prefix}parameter>\n'
        f"</{prefix}invoke>\n</{prefix}{section}>"
    )


def make_pair(tag: str) -> MarkerPair:
    return MarkerPair(open=(f"<{tag}>",), close=(f"</{tag}>",))


def make_calls(prefix: str) -> MarkerPair:
    return MarkerPair(open=(f"<{prefix}invoke name=",), close=(f"</{prefix}invoke>",))


def make_body(prefix: str) -> TaggedArguments:
    """Describe the arguments, in elements whose names have a prefix."""
    return TaggedArguments(
        spellings=('"{name}"',),
        key=MarkerPair(open=(f"<{prefix}parameter name=",), close=(">",)),
        key_pattern=r"[\"']?(?P<key>[^\"'<>]+?)[\"']?(?:\s+string=[\"']?(?P<type>\w+)[\"']?)?",
        key_spelling='"{key}" string="{text}"',
        value=MarkerPair(close=(f"</{prefix}parameter>",)),
        trim="none",
    )


TOOLS = ToolFormat(
    name="deepseek_v32",
    models="DeepSeek V3.2",
    example=make_example("｜DSML｜", "function_calls"),
    section=make_pair("｜DSML｜function_calls"),
    call=make_calls("｜DSML｜"),
    bodies=(make_body("｜DSML｜"),),
    aliases=("deepseekv32", "deepseek32"),
)
