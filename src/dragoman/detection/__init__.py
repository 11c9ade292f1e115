"""Finds out, from a model's own chat template, how the model writes calls and thoughts.

    found = detect(template)
    OutputParser(found.tools, found.reasoning, prompt=prompt)

Detection is the proof: made-up turns of the assistant's are rendered by the template and read back
with every format that could be it; the one that gives back what went in is the one. Nothing is
decided by the name of a model or of a file.

`stage` renders, `thinking` turns the switches, `proof` reads back and compares, `choose` decides.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Mapping
from functools import lru_cache
from typing import Any

from dragoman.detection.match import Choice, Chooser, Thoughts
from dragoman.detection.reasoning_switch import Positions
from dragoman.detection.render_probe import Stage
from dragoman.detection.response_template import Brought, brought
from dragoman.detection.result import Call, Detected, Item, Said, Sure, Switch, Thinking
from dragoman.detection.round_trip import CALL, Scene
from dragoman.formats import find_tools

__all__ = ["Call", "Detected", "Item", "Said", "Switch", "Thinking", "brought", "detect"]

GENERIC = "hermes_json"
NOTHING = Brought()


def detect(
    template: str, vocabulary: Container[str] = (), config: Mapping[str, Any] | None = None
) -> Detected:
    """The formats of a template. What was found from the template alone is remembered.

    `vocabulary` holds the model's special tokens, `config` its tokenizer's configuration.
    """
    given = brought(config) if config else None
    if given is not None:
        return _look(template, vocabulary, given)
    found = _detect(template)
    if found.sure == "generic" or found.reasoning is None:
        return found if vocabulary == () else _look(template, vocabulary, NOTHING)
    return found


@lru_cache(maxsize=64)
def _detect(template: str) -> Detected:
    return _look(template, (), NOTHING)


def _look(template: str, vocabulary: Container[str], given: Brought) -> Detected:
    stage = Stage(template)
    positions = Positions(stage)
    stage.find_thoughts([one.switches for one in positions.all])
    scene = Scene(stage, [one.switches for one in positions.distinct])
    chooser = Chooser(scene, [one.opening for one in positions.distinct], vocabulary)
    calls, thoughts = _with(given, chooser)
    proof = scene.prove(calls.format, thoughts.format)
    why = [f"calls: {calls.why}" if calls.why else "calls: nothing points to a format"]
    why.append(f"thoughts: {thoughts.why or 'nothing points to any'}")
    why += ["time: there was not enough to find out everything"] if stage.spent else []
    tools = calls.format or find_tools(GENERIC)
    return Detected(
        tools=tools.name,
        reasoning=thoughts.format.name if thoughts.format else None,
        generic=calls.format is None,
        declares=stage.able.tools_rendered,
        renders=stage.able.renders,
        thinking=positions.thinking(thoughts.format),
        proof=proof,
        sure=_sure(calls, thoughts, proof),
        why=tuple(why),
        also=calls.also,
        digest=hashlib.sha256(template.encode("utf-8", "surrogatepass")).hexdigest(),
        calls=tools,
        thoughts=thoughts.format,
    )


def _with(given: Brought, chooser: Chooser) -> tuple[Choice, Thoughts]:
    """What the checkpoint brought along, unless the template shows otherwise."""
    why = "the checkpoint's response template says so"
    calls = chooser.calls()
    if given.tools is not None and not (calls.shown and chooser.fails(given.tools)):
        calls = Choice(given.tools, why, shown=calls.shown)
    thoughts = chooser.thoughts(calls.format)
    if given.reasoning is not None and not thoughts.shown:
        thoughts = Thoughts(given.reasoning, why)
    return calls, thoughts


def _sure(calls: Choice, thoughts: Thoughts, proof: tuple[Item, ...]) -> Sure:
    if calls.format is None:
        return "generic"
    if not calls.shown or not any(item.name == CALL and item.text for item in proof):
        return "said"
    whole = all(item.status != "failed" for item in proof)
    return "proved" if whole and (thoughts.shown or thoughts.format is None) else "partly"
