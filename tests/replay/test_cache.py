"""The replay cache, the prefix index and the canonical form of JSON."""

from __future__ import annotations

from dragoman.replay.cache import ReplayCache
from dragoman.replay.digest import ReplayEntry, digest_answer, normalize_arguments
from dragoman.replay.prefix_index import PrefixIndex, pack_ids


def test_a_cache_holds_the_newest_entries_within_its_bytes() -> None:
    cache = ReplayCache(10_000)
    for number in range(100):
        cache.put("one", {f"key{number}": ReplayEntry(b"", b"", b"", bytes(600))})
        assert cache.get("one", "key0") is not None  # an entry in use stays
        assert cache.size <= 10_000
    assert cache.get("one", "key99") is not None
    assert cache.get("one", "key50") is None
    assert cache.get("two", "key99") is None


def test_a_prefix_index_finds_where_a_prompt_diverges() -> None:
    index = PrefixIndex(max_sequences=3)

    def match(*ids: int, owner: str = "one") -> tuple[int, bool]:
        return index.match(owner, pack_ids(ids))

    assert match(1, 2, 3) == (0, False)
    index.add("one", pack_ids([1, 2, 3, 4, 5]))
    index.add("one", pack_ids([1, 2, 9]))
    assert match(1, 2, 3, 4, 5, 6) == (5, False)
    assert match(1, 2, 3, 8, 8, 8) == (3, True)
    assert match(1, 2, 3) == (3, False)
    assert match(1, 2, 9, 1) == (3, False)
    assert match(7, 1) == (0, False)
    assert match(1, 2, 3, owner="two") == (0, False)
    index.add("one", pack_ids([1, 2, 3, 4, 5, 6, 7]))  # replaces the first
    index.add("two", pack_ids([1]))
    assert match(1, 2, 9, 1) == (3, False)
    index.add("two", pack_ids([2]))
    assert match(1, 2, 9, 1) == (2, True)
    long = list(range(1000))
    index.add("one", pack_ids(long))
    for length in (1, 2, 255, 256, 500, 999):
        assert match(*long[:length], -1, *long[length:]) == (length, True)


def test_one_value_has_one_canonical_form() -> None:
    same = [
        '{"a": 1, "b": [1.5, "x"]}',
        '{"b":[1.5,"\\u0078"],"a":1.0}',
        ' {"a":1e0,"b":[15e-1,"x"]}',
    ]
    assert len({normalize_arguments(text) for text in same}) == 1
    assert normalize_arguments("") == normalize_arguments("{}") == normalize_arguments(" {} ")
    other = ['{"a": 1}', '{"a": "1"}', '{"a": true}', '{"a": [1]}', '{"a": null}', "{", '{"a": 2}']
    assert len({normalize_arguments(text) for text in other}) == len(other)
    deep = "[" * 100_000
    assert normalize_arguments(deep) == deep.encode()
    half = "\ud800"
    assert digest_answer(half, [(half, half)]) != digest_answer(half, [(half, half * 2)])
