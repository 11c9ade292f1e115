"""Every case of every format, truncated at every position and fed by characters from its start.

`tests/formats/test_formats.py` feeds only the last characters one by one.
"""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.testing.format_checks import fold_spans, parse_pieces
from tests.formats.test_formats import ALL, parser


@pytest.mark.parametrize("case", ALL)
def test_truncated_texts_do_not_depend_on_their_pieces(case: dict[str, Any]) -> None:
    for position in range(len(case["text"])):
        start = case["text"][:position]
        limited = fold_spans(parse_pieces(parser(case), [start], truncated=True))
        by_character = fold_spans(parse_pieces(parser(case), start, truncated=True))
        assert by_character == limited, start
