"""Conversations: OpenAI's `/v1/conversations`, stored items that responses can continue.

decode    the request bodies, into items as they are stored
encode    a conversation, and pages of its items
"""

from __future__ import annotations

from dragoman.protocols.conversations.decode import (
    ConversationContent,
    ConversationUpdate,
    NewConversation,
    NewConversationItems,
    decode_items,
    decode_new,
    decode_update,
)
from dragoman.protocols.conversations.encode import (
    encode_conversation,
    encode_deletion,
    encode_item_list,
)
from dragoman.protocols.dialect import Dialect, pass_strict
from dragoman.protocols.shared import openai

__all__ = [
    "DIALECT",
    "ConversationContent",
    "ConversationUpdate",
    "NewConversation",
    "NewConversationItems",
    "decode_items",
    "decode_new",
    "decode_update",
    "encode_conversation",
    "encode_deletion",
    "encode_item_list",
]

DIALECT: Dialect[ConversationContent] = Dialect(
    name="conversations", decode=pass_strict(decode_new), encode_error=openai.encode_error
)
