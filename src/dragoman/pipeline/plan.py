"""A request that is ready to run: the jobs of the engine, and how to read the answer."""

from __future__ import annotations

from msgspec import Struct

from dragoman.grammar.grammar_spec import CompiledGrammar
from dragoman.models.model import Model
from dragoman.models.output_format import AnswerStart, OutputFormat
from dragoman.models.registry import Lease
from dragoman.pipeline.admission import Ticket
from dragoman.pipeline.constrain import UNCONSTRAINED
from dragoman.replay import PromptReuse, ReplayService
from dragoman.types import Chat, Job, Request


class OutputReading(Struct):
    """How to read the answer to a chat."""

    chat: Chat
    output_format: OutputFormat
    start: AnswerStart
    budget: int | None = None  # maximum number of reasoning tokens, if the pipeline enforces it
    grammar_after_reasoning: str | None = None  # for the rest, once reasoning is cut short


class PreparedPrompt(Struct):
    """A prompt as the engine takes it."""

    content: list[int] | str
    echo: str = ""  # the prompt as text, when the client wants it back
    reading: OutputReading | None = None
    grammar: CompiledGrammar = UNCONSTRAINED
    warnings: tuple[str, ...] = ()  # one sentence for each field that has no effect
    answer_start: int | None = None  # index of the token where the template opens the answer
    reuse: PromptReuse | None = None


class Plan(Struct):
    """A request that is ready to run."""

    request: Request
    lease: Lease
    jobs: list[Job]
    prompts: list[PreparedPrompt]
    ticket: Ticket
    replay: ReplayService | None = None

    @property
    def model(self) -> Model:
        return self.lease.model

    @property
    def model_name(self) -> str:
        """The name of the model in the response: the alias the client used, else its id."""
        requested = self.request.model.strip()
        return requested if requested in self.model.aliases else self.model.id

    @property
    def warnings(self) -> tuple[str, ...]:
        """One sentence for each field of the request that has no effect."""
        warnings = list(self.request.warnings)
        for prompt in self.prompts:
            warnings += (*prompt.warnings, *prompt.grammar.warnings)
        return tuple(dict.fromkeys(warnings))

    @property
    def reuse(self) -> PromptReuse | None:
        """How much of a chat's prompt earlier requests have sent, where that is known."""
        return self.prompts[0].reuse if self.prompts else None

    @property
    def choice_count(self) -> int:
        """How many choices the answer has."""
        return self.request.n * len(self.jobs)

    @property
    def prompt_tokens(self) -> int:
        """How many tokens all prompts have, as far as that is known."""
        return sum(len(job.prompt) for job in self.jobs if isinstance(job.prompt, list))

    def close(self) -> None:
        self.ticket.release()
        self.lease.release()
