"""The bounded cache drops the least recently used entries and keeps its size."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dragoman.types.bounded_cache import BoundedCache


def test_least_recently_used_entry_is_dropped() -> None:
    cache = BoundedCache[str, int](max_entries=2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert cache.get("b") is None
    assert cache.values() == [1, 3]
    assert ("a" in cache, "b" in cache, len(cache)) == (True, False, 2)


def test_entry_that_is_too_large_is_not_stored() -> None:
    cache = BoundedCache[str, str](
        max_size=10, max_entry_size=5, measure=lambda key, value: len(value)
    )
    cache.put("a", "xxxx")
    cache.put("a", "x" * 6)
    assert (cache.get("a"), cache.size) == ("xxxx", 4)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9), st.booleans()), max_size=50))
def test_limits_hold_and_every_dropped_entry_is_reported(
    operations: list[tuple[int, int, bool]],
) -> None:
    stored: dict[int, int] = {}

    def drop(key: int, value: int) -> None:
        assert stored.pop(key) == value

    cache = BoundedCache[int, int](
        max_entries=3, max_size=15, measure=lambda key, value: value, on_drop=drop
    )
    for key, value, removes in operations:
        if removes:
            cache.pop(key)
        else:
            cache.pop(key)
            stored[key] = value
            cache.put(key, value)
        assert len(cache) <= 3
        assert cache.size == sum(cache.values()) <= 15
        assert sorted(cache.values()) == sorted(stored.values())
