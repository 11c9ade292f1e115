"""Puts the tokens that a model wrote back into the prompt when a client replays a conversation.

**Why.** An engine keeps the state of the tokens it has processed and reuses it for the next prompt
as far as that prompt starts with the same tokens (its prefix cache). A chat client sends the whole
conversation with every request, but not as the model wrote it: it leaves out the reasoning, writes
the arguments of tool calls as different JSON, and trims texts. The template renders that as other
tokens, so from the first such turn on the engine has to process everything again, and the model
reads answers that differ from those it wrote.

**What is remembered.** When an answer ends, `recorder` stores the token ids that the model wrote,
together with the ids of the template's opening before them, in the `cache`. They belong to the
owner of the request (its API key), to the model with its vocabulary and to its LoRA adapters, and
are never used for anyone else. The cache is bounded; turns of responses that a client asks the
server to store are also written to the database and deleted together with the response.

**How a turn is found again.** Each turn is stored under a `digest` of everything that came before
it in the conversation and of its own text and calls, and also under the ids of the calls in it, if
this server generated them. `service` computes the same keys for the turns of a new request and
compares the digests of text, calls and reasoning. White space and the form of JSON make no
difference, and the client may leave out the reasoning. `splice` then replaces the client's version
of the turn in the rendered prompt with the stored tokens.

**What is never replayed.** A turn that the client edited in any other way; a turn in another
conversation, of another owner, model or adapter; an answer that a stop string cut, or one picked by
`best_of`; a turn with no clear start and end in this template's prompt (`turn_boundaries`,
`turn_positions`); a last message that the model is to continue; and any turn, if the prompt would
not fit the context with the replays. These stay as the client sent them.

`prefix_index` holds the last prompts with their answers, to measure how much of a new prompt the
engine can reuse.
"""

from dragoman.replay.recorder import ReplayRecorder
from dragoman.replay.service import (
    NO_ROOM,
    REREAD,
    PromptReuse,
    ReplayedPrompt,
    ReplayScope,
    ReplayService,
)

__all__ = [
    "NO_ROOM",
    "REREAD",
    "PromptReuse",
    "ReplayRecorder",
    "ReplayScope",
    "ReplayService",
    "ReplayedPrompt",
]
