"""A list of actions between markers; the answer has its own markers."""

from dragoman.output.spec import JsonObjects, MarkerPair, ToolFormat

TOOLS = ToolFormat(
    name="cohere_cmd4",
    models="Cohere2 MoE, Command 4, North",
    example=(
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "f", '
        '"parameters": {"a": 1}}\n]<|END_ACTION|>'
    ),
    section=MarkerPair(open=("<|START_ACTION|>",), close=("<|END_ACTION|>",)),
    ignored_after_call=("<|END_OF_TURN_TOKEN|>", "<|START_OF_TURN_TOKEN|>", "<|CHATBOT_TOKEN|>"),
    bodies=(JsonObjects(),),
    dropped=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    template_hints=("<|START_TEXT|>",),
    skipped=(MarkerPair(open=("<co>",)), MarkerPair(open=("</co:",), close=(">",))),
    aliases=("cohere_command4",),
)
