"""The answer is a name on its own line and the arguments below it."""

from dragoman.output.spec import NamedObject, ToolFormat

TOOLS = ToolFormat(
    name="glm4_legacy",
    models="GLM-4",
    example='f\n{"a": 1}',
    bodies=(NamedObject(name_ends=("\n",), name_pattern=r"(?P<name>[\w.-]+)"),),
    unmarked_at_start=True,
)
