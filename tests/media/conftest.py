from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.media_files import READER


@pytest.fixture(scope="module", autouse=True)
def _close_media_services() -> Iterator[None]:
    yield
    READER.close()
