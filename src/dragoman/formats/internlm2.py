"""A JSON object between the markers of an action."""

from dragoman.output.spec import JsonObjects, MarkerPair, ToolFormat

TOOLS = ToolFormat(
    name="internlm2",
    models="InternLM 2 and 2.5, Intern-S1",
    example='<|action_start|><|plugin|>\n{"name": "f", "parameters": {"a": 1}}<|action_end|>',
    section=MarkerPair(
        open=("<|action_start|><|plugin|>", "<|action_start|> <|plugin|>"),
        close=("<|action_end|>",),
    ),
    bodies=(JsonObjects(),),
    aliases=("internlm", "interns1", "intern-s1"),
)
