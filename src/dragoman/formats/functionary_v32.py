"""Each part of an answer starts with its recipient; `all` is the user."""

from dragoman.output.spec import MessageHeader, NamedObject, ToolFormat

TOOLS = ToolFormat(
    name="functionary_v32",
    models="Functionary 3.2",
    example='f\n{"a": 1}',
    header=MessageHeader(
        open=(">>>",),
        end=("\n",),
        answer_starts=("",),
        routes=((r"^(?:>>>)?all$", "text"), (r"^(?:>>>)?(?P<name>[\w.-]+)$", "call")),
        spellings=(("text", ">>>all\n"), ("call", ">>>{name}\n")),
    ),
    bodies=(NamedObject(),),
)
