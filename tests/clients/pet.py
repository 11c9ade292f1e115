"""A model to request: its fields are bounded, so that a small model finishes them."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

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
