"""What models said, token by token, for clients that tell it back in their own words.

When an answer ends, its tokens are kept under the ids of its calls and under a digest of what the
client was told and of all that was said before (`told`). When a conversation comes back, each turn
of the assistant's is looked up, and if the client tells the same, the prompt gets the tokens as
they were (`prompt.recalled`): it then goes on from what the engine has in its cache. A turn that
was edited is left as the client wrote it.

What is kept belongs to whoever it was said to and is found by nobody else. The newest stays in
memory (`shelf`); what a client wanted to be kept goes to a store as well, behind the answer's back.
A `trail` of the last prompts says how much of a new one was there before.
"""

from dragoman.replay.service import (
    PromptReuse,
    ReplayedPrompt,
    ReplayRecorder,
    ReplayScope,
    ReplayService,
)

__all__ = ["PromptReuse", "ReplayRecorder", "ReplayScope", "ReplayService", "ReplayedPrompt"]
