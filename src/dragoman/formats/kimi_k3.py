"""Elements whose tags are markers; each argument states its type."""

from dragoman.output.spec import GAP, MarkerPair, ReasoningFormat, TaggedArguments, ToolFormat


def opening(name: str) -> str:
    return f"<|open|>{GAP}{name}{GAP}<|sep|>"


def closing(name: str) -> str:
    return f"<|close|>{GAP}{name}{GAP}<|sep|>"


RESPONSE = (opening("response"), closing("response"), closing("message"), "<|end_of_msg|>")

TOOLS = ToolFormat(
    name="kimi_k3",
    models="Kimi K3",
    example=(
        '<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|>'
        '<|open|>argument key="a" type="number"<|sep|>1<|close|>argument<|sep|>'
        "<|close|>call<|sep|><|close|>tools<|sep|>"
    ),
    section=MarkerPair(open=(opening("tools"),), close=(closing("tools"),)),
    call=MarkerPair(open=(f"<|open|>{GAP}call ",), close=(closing("call"),)),
    bodies=(
        TaggedArguments(
            name_ends=("<|sep|>",),
            name_pattern=r'\s*tool\s*=\s*"(?P<name>[^"]*)"(?:\s+\w+\s*=\s*"[^"]*")*\s*',
            spellings=('tool="{name}" index="{number}"', 'tool="{name}"'),
            key=MarkerPair(open=(f"<|open|>{GAP}argument ",), close=("<|sep|>",)),
            key_pattern=r'\s*key\s*=\s*"(?P<key>[^"]*)"(?:\s+type\s*=\s*"(?P<type>[^"]*)")?\s*',
            key_spelling='key="{key}" type="{type}"',
            value=MarkerPair(close=(closing("argument"),)),
            block=MarkerPair(open=(f"<|open|>{GAP}json ",), close=(closing("json"),)),
            trim="none",
            html_entities=True,
        ),
    ),
    section_optional=True,
    dropped=RESPONSE,
)
REASONING = ReasoningFormat(
    name="kimi_k3",
    models="Kimi K3",
    example="<|open|>think<|sep|>reasoning<|close|>think<|sep|><|open|>response<|sep|>answer",
    open=(opening("think"),),
    close=(closing("think"), opening("response")),
    dropped=RESPONSE,
    ended_by=(opening("tools"),),
    starts_inside=True,
    answer_separator="<|open|>response<|sep|>",
)
