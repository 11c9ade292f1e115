"""Elements whose tags are marks; every argument says its type."""

from dragoman.output.spec import GAP, Pair, Reasoning, Tagged, Tools


def opening(name: str) -> str:
    return f"<|open|>{GAP}{name}{GAP}<|sep|>"


def closing(name: str) -> str:
    return f"<|close|>{GAP}{name}{GAP}<|sep|>"


RESPONSE = (opening("response"), closing("response"), closing("message"), "<|end_of_msg|>")

TOOLS = Tools(
    name="kimi_k3",
    models="Kimi K3",
    example=(
        '<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|>'
        '<|open|>argument key="a" type="number"<|sep|>1<|close|>argument<|sep|>'
        "<|close|>call<|sep|><|close|>tools<|sep|>"
    ),
    section=Pair(open=(opening("tools"),), close=(closing("tools"),)),
    call=Pair(open=(f"<|open|>{GAP}call ",), close=(closing("call"),)),
    bodies=(
        Tagged(
            ends=("<|sep|>",),
            name=r'\s*tool\s*=\s*"(?P<name>[^"]*)"(?:\s+\w+\s*=\s*"[^"]*")*\s*',
            written=('tool="{name}" index="{number}"', 'tool="{name}"'),
            key=Pair(open=(f"<|open|>{GAP}argument ",), close=("<|sep|>",)),
            keys=r'\s*key\s*=\s*"(?P<key>[^"]*)"(?:\s+type\s*=\s*"(?P<type>[^"]*)")?\s*',
            key_written='key="{key}" type="{type}"',
            value=Pair(close=(closing("argument"),)),
            block=Pair(open=(f"<|open|>{GAP}json ",), close=(closing("json"),)),
            trim="none",
            escaped=True,
        ),
    ),
    drop=RESPONSE,
)
REASONING = Reasoning(
    name="kimi_k3",
    models="Kimi K3",
    example="<|open|>think<|sep|>thoughts<|close|>think<|sep|><|open|>response<|sep|>answer",
    open=(opening("think"),),
    close=(closing("think"), opening("response")),
    drop=RESPONSE,
    ended_by=(opening("tools"),),
    inside=True,
    answer="<|open|>response<|sep|>",
)
