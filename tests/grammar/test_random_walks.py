"""Every text that a grammar allows is a valid answer: random walks through every format.

The parser of the format reads a text that the grammar allows. Its calls must satisfy their schemas,
and if a call was required, the text consists of calls and reasoning. The texts contain many markers
in wrong places, since a model may write those too.
"""

from __future__ import annotations

import random

import pytest

from tests.support.hidden_calls import find_hidden_calls
from tests.support.random_walks import NAMES, find_errors

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", NAMES)
def test_every_allowed_text_is_valid(name: str) -> None:
    assert find_errors(name, random.Random(name), 10) == []


@pytest.mark.parametrize("name", NAMES)
def test_text_hides_no_call(name: str) -> None:
    assert list(find_hidden_calls(name, random.Random(name), 300)) == []
