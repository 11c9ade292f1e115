"""Asks a server for a typed answer with `instructor`; run by a Python that has it.

Arguments: the server's address, the model, the mode. Prints what was found as JSON.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Literal

import instructor
from openai import OpenAI
from pydantic import BaseModel, Field


class Kind(StrEnum):
    CAT = "cat"
    DOG = "dog"


class Collar(BaseModel, extra="forbid"):
    colour: Literal["red", "green", "blue"]


class Pet(BaseModel, extra="forbid"):
    """A pet."""

    name: str = Field(min_length=1, max_length=12, description="How it is called.")
    kind: Kind
    age: int = Field(ge=0, le=20)
    collar: Collar | None


def main(url: str, model: str, mode: str) -> None:
    client = OpenAI(base_url=url, api_key="none", max_retries=0, timeout=120)
    typed = instructor.from_openai(client, mode=instructor.Mode[mode])
    found = typed.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Invent a pet."}],
        response_model=Pet,
        max_retries=0,
        temperature=1,
        seed=3,
        max_tokens=300,
    )
    print(found.model_dump_json())


if __name__ == "__main__":
    main(*sys.argv[1:])
