"""Records the answer to one request, so that its turns can be replayed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from itertools import groupby
from operator import attrgetter

from dragoman.events import Completion, Delta
from dragoman.replay.digest import (
    ReplayEntry,
    digest_answer,
    digest_reasoning,
    make_call_key,
    make_turn_key,
)
from dragoman.replay.prefix_index import WIDTH, pack_ids
from dragoman.replay.service import PromptReuse, ReplayScope, ReplayService


class ReplayRecorder:
    """Collects the deltas of every choice and stores its tokens when it finishes."""

    def __init__(
        self,
        service: ReplayService,
        scope: ReplayScope,
        persist: bool = False,
        source: str | None = None,
    ) -> None:
        """`persist`: also write to the database. `source`: the response the turns belong to."""
        self._service = service
        self._scope = scope
        self._persist = persist
        self._source = source
        self._deltas: defaultdict[int, list[Delta]] = defaultdict(list)
        self._prompts: dict[int, tuple[PromptReuse, int | None]] = {}

    def start(self, choices: range, reuse: PromptReuse, answer_start: int | None) -> None:
        """Record these choices as answers to a prompt; answers start at token `answer_start`."""
        self._prompts |= dict.fromkeys(choices, (reuse, answer_start))
        self._service.count_reuse(reuse)
        self._service.get_prefix_index(self._scope).add(self._scope.owner, reuse.packed_ids)

    def add(self, delta: Delta) -> None:
        self._deltas[delta.choice].append(delta)

    def finish(self, index: int, ids: list[int] | None, own_call_ids: Collection[str]) -> None:
        """Store a choice that is complete.

        `ids` are its tokens, if they are known. `own_call_ids` are the ids of calls that this
        server generated, so that no other turn has them.
        """
        if ids is None or index not in self._prompts:
            return
        reuse, answer_start = self._prompts[index]
        prompt, answer = reuse.packed_ids, pack_ids(ids)
        self._service.get_prefix_index(self._scope).add(self._scope.owner, prompt + answer)
        if answer_start is None or not ids:
            return
        [choice] = fold_deltas(self._deltas.pop(index)).build_choices()
        answer_digest = digest_answer(
            choice.text, ((call.name, call.arguments) for call in choice.calls)
        )
        entry = ReplayEntry(
            answer_digest,
            digest_reasoning(choice.reasoning),
            prompt[WIDTH * answer_start :],
            answer,
        )
        scope_key = self._service.get_scope_key(self._scope)
        keys = [
            make_call_key(scope_key, call.id) for call in choice.calls if call.id in own_call_ids
        ]
        keys.append(make_turn_key(scope_key, reuse.prefix_digest, answer_digest))
        self._service.store(self._scope, dict.fromkeys(keys, entry), self._persist, self._source)


def fold_deltas(deltas: Sequence[Delta]) -> Completion:
    """Combine the deltas of a choice; runs of text and of reasoning are joined first."""
    completion = Completion()
    for channel, run in groupby(deltas, attrgetter("channel")):
        if channel in ("text", "reasoning"):
            text = "".join([delta.text for delta in run])
            completion.add(Delta(deltas[0].choice, text, channel))
        else:
            for delta in run:
                completion.add(delta)
    return completion
