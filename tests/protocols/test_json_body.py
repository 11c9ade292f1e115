"""What errors say about a body that cannot be decoded."""

from __future__ import annotations

import pytest

from dragoman.errors import MAX_MESSAGE, DragomanError, InvalidValue
from dragoman.protocols.embeddings.decode import EmbeddingRequest
from dragoman.protocols.shared.json_body import decode_body


def test_a_long_value_is_cut_in_the_message() -> None:
    body = b'{"model": "m", "input": "a", "encoding_format": "%s"}' % (b"x" * 5000)
    with pytest.raises(InvalidValue) as caught:
        decode_body(body, EmbeddingRequest)
    assert caught.value.param == "encoding_format"
    assert len(caught.value.message) < 300


def test_no_message_is_longer_than_the_limit() -> None:
    error = DragomanError("x" * 5000)
    assert len(error.message) == MAX_MESSAGE + 1
    assert str(error) == error.message
