"""Pictures and sound in the results of remote tools."""

from __future__ import annotations

from dragoman.errors import BadRequest
from dragoman.media.service import MediaReading
from dragoman.models.model import Model
from dragoman.pipeline.services import Services
from dragoman.types import AudioPart, Chat, ImagePart, MediaItem, Message, TextPart


async def read_tool_media(
    part: ImagePart | AudioPart, model: Model, services: Services, owner: str
) -> MediaItem | None:
    """Read what a tool returned; None if the model cannot read it, or if it is not valid."""
    if part.modality not in model.capabilities.modalities:
        return None
    chat = Chat(messages=(Message(role="tool", content=(part,)),))
    reading = MediaReading(modalities=model.capabilities.modalities, owner=owner)
    try:
        [read] = (await services.media.read_chat(chat, reading)).messages[0].content
    except BadRequest:  # of the tool's server, not of the client
        return None
    return None if isinstance(read, TextPart) else read.item
