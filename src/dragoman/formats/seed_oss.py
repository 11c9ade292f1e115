"""As `qwen3_coder`, in a wrapper of its own."""

from dragoman.output.spec import Pair, Tagged, Tools

TOOLS = Tools(
    name="seed_oss",
    models="Seed-OSS",
    example=(
        "<seed:tool_call>\n<function=f>\n<parameter=a>1</parameter>\n</function>\n</seed:tool_call>"
    ),
    section=Pair(open=("<seed:tool_call>",), close=("</seed:tool_call>",)),
    call=Pair(open=("<function=",), close=("</function>",)),
    bodies=(
        Tagged(
            key=Pair(open=("<parameter=",), close=(">",)),
            value=Pair(close=("</parameter>",)),
            trim="none",
            inner=True,
        ),
    ),
    bare=True,
)
