"""Regular expressions for the integers of a range, without leading zeros.

A range is divided by the number of digits, and numbers of one length by their first digit. All
numbers with a first digit between the two outer ones belong to the range; the two outer ones are
divided further: 25 to 73 is `2[5-9]|[3-6][0-9]|7[0-3]`.
"""

from __future__ import annotations

MAX_DIGITS = 30  # of an integer without a bound


def integer_range_to_regex(low: int | None, high: int | None) -> str:
    """Return an expression for the integers from `low` to `high`; None means unbounded.

    So do bounds beyond `MAX_DIGITS`.
    """
    low = None if low is not None and low <= -(10**MAX_DIGITS) else low
    high = None if high is not None and high >= 10**MAX_DIGITS else high
    options: list[str] = []
    if low is None or low < 0:
        smallest = 1 if high is None or high >= 0 else -high
        negative = _list_range(smallest, None if low is None else -low)
        options += [f"-(?:{'|'.join(negative)})"]
    if high is None or high >= 0:
        options += _list_range(0 if low is None else max(low, 0), high)
    return "|".join(options)


def _list_range(low: int, high: int | None) -> list[str]:
    """List expressions that match the numbers of a range, which are not negative."""
    if high is None:
        digits = len(str(low))
        above = f"[1-9][0-9]{{{digits},{MAX_DIGITS - 1}}}"
        return [*_list_range(low, 10**digits - 1), above]
    options = []
    for digits in range(len(str(low)), len(str(high)) + 1):
        first = max(low, 10 ** (digits - 1) if digits > 1 else 0)
        options += _list_same_length(str(first), str(min(high, 10**digits - 1)))
    return options


def _list_same_length(low: str, high: str) -> list[str]:
    if not low:
        return [""]
    rest = len(low) - 1
    if low[0] == high[0]:
        return [low[0] + option for option in _list_same_length(low[1:], high[1:])]
    first, last = int(low[0]), int(high[0])
    options = []
    if low[1:].strip("0"):
        options += [low[0] + option for option in _list_same_length(low[1:], "9" * rest)]
        first += 1
    end = []
    if high[1:].strip("9"):
        end = [high[0] + option for option in _list_same_length("0" * rest, high[1:])]
        last -= 1
    if first <= last:
        digit = str(first) if first == last else f"[{first}-{last}]"
        options.append(digit + ("" if not rest else "[0-9]" if rest == 1 else f"[0-9]{{{rest}}}"))
    return options + end
