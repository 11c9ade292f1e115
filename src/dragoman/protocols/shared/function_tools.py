"""Tools that are functions with a JSON schema, as OpenAI and Ollama send them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from dragoman.errors import BadRequest
from dragoman.protocols.shared import openai
from dragoman.protocols.shared.tool_choice import make_duplicate_tool_error
from dragoman.types import Json, Tool


class ChatFunction(Struct):
    """A function the model may call."""

    name: openai.Name
    description: str | None = None
    parameters: dict[str, Json] | None = None
    strict: bool | None = None


class ChatTool(Struct):
    type: str
    function: ChatFunction | None = None


def decode_tools(tools: Sequence[ChatTool] | None) -> tuple[Tool, ...]:
    decoded: dict[str, Tool] = {}
    for i, tool in enumerate(tools or ()):
        path = f"tools[{i}]"
        function = tool.function
        if tool.type != "function" or function is None:
            raise BadRequest(f"`{path}` must be of type `function`.", param=path)
        if function.name in decoded:
            raise make_duplicate_tool_error(function.name, f"{path}.function.name")
        decoded[function.name] = Tool(
            name=function.name,
            description=function.description,
            parameters=function.parameters,
            strict=function.strict,
            param=f"{path}.function.parameters",
        )
    return tuple(decoded.values())
