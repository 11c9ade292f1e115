"""A list of actions between marks; the answer has marks of its own."""

from dragoman.output.spec import Objects, Pair, Tools

TOOLS = Tools(
    name="cohere_cmd4",
    models="Cohere2 MoE, Command 4, North",
    example=(
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "f", '
        '"parameters": {"a": 1}}\n]<|END_ACTION|>'
    ),
    section=Pair(open=("<|START_ACTION|>",), close=("<|END_ACTION|>",)),
    spare=("<|END_OF_TURN_TOKEN|>", "<|START_OF_TURN_TOKEN|>", "<|CHATBOT_TOKEN|>"),
    bodies=(Objects(),),
    drop=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    signs=("<|START_TEXT|>",),
    skip=(Pair(open=("<co>",)), Pair(open=("</co:",), close=(">",))),
    aliases=("cohere_command4",),
)
