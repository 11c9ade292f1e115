"""What a tool's schema says about the arguments of a call while they are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dragoman.output.arguments.json_strings import word_to_json
from dragoman.output.arguments.schemas.parameter_types import ANY_TYPE, OBJECT_TYPES, Types


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentTypes:
    """The types of arguments by their keys; without a schema, any type is allowed."""

    # returns those that the schema names; only damaged calls and a few formats need it
    list_parameters: Callable[[], Mapping[str, Types]] = dict
    find: Callable[[str], Types] = lambda _: ANY_TYPE  # for any key, also by patterns
    # converts a word to one of the types
    cast: Callable[[str, Types], str] = lambda word, _: word_to_json(word)
    casts_words: bool = False  # whether words without quotes get their type from the schema
    casts_strings: bool = False  # whether strings do, too
    tools: tuple[str, ...] = ()  # the names of the declared tools
    call_keys: tuple[str, ...] = ()  # keys of the object that contains the arguments

    def get_expected(self, key: str | None) -> Types | None:
        """Return the types that the schema gives the value of a key."""
        return self.list_parameters().get(key) if self.casts_words and key is not None else None

    def may_be_object(self, key: str | None) -> bool:
        """Whether the schema allows an object as the value of a key, or says nothing about it."""
        types = ANY_TYPE if key is None else self.find(key)
        return not types or not types.isdisjoint(OBJECT_TYPES)

    def is_parameter(self, key: str) -> bool:
        """Whether only the arguments can have this key, not the object that contains them."""
        return bool(key) and key in self.list_parameters() and key not in self.call_keys


ANY_ARGUMENTS = ArgumentTypes()
