"""Rewrites the terminals of a client's grammar in pieces that are unambiguous to a lexer.

A terminal whose characters all stand for themselves stays one piece. In quotes, any other consists
of runs of such characters with escapes between them: what remains of its regular expression after
an escape is a state, and a rule says what leads to it. For text up to a marker, and for expressions
that count many repetitions or contain `&` or `~`, the states are those of the automaton: a piece
leads from one state to another, and a run of characters that does not leave its state is one piece.
The rules are left-recursive: with right recursion, the parser would keep an item for every piece.

A marker can also arise where one terminal follows another. So a terminal may end with a prefix of a
marker only if nothing that can follow continues that marker.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple, TypeAlias

from dragoman.grammar.client.first_follow import FollowSets
from dragoman.grammar.client.lark_parser import LarkGrammar, Terminal
from dragoman.grammar.client.text_syntax import DelimitedSyntax, QuotedSyntax, TextSyntax
from dragoman.grammar.lark_builder import LarkBuilder, join_alternatives, quote_literal
from dragoman.grammar.regex.automaton import Automaton, TooComplex
from dragoman.grammar.regex.char_sets import get_chars, intersect, subtract, to_regex_class
from dragoman.grammar.regex.escape import escape_regex
from dragoman.grammar.regex.regex_builder import RegexId

MAX_PIECES = 5_000


class PieceState(NamedTuple):
    """A state of an automaton; `pending` after the prefix of a marker, which must not continue."""

    state: int
    pending: bool = False
    accepting: bool = False


# regular expressions of pieces, by target state and source state
Pieces: TypeAlias = dict[PieceState, dict[PieceState, list[str]]]


class TerminalExpressions(NamedTuple):
    """How a terminal is written; `unpadded` if it does not end with padding."""

    text: str | None = None
    unpadded: str | None = None


class TerminalWriter:
    """Writes the terminals of one grammar in one syntax."""

    def __init__(
        self,
        lark: LarkBuilder,
        grammar: LarkGrammar,
        follow_sets: FollowSets,
        syntax: TextSyntax,
    ) -> None:
        self._lark = lark
        self._grammar = grammar
        self._follow_sets = follow_sets
        self._syntax = syntax
        self._expressions: dict[tuple[str | int, frozenset[str]], TerminalExpressions] = {}
        self._endings: dict[Terminal, frozenset[str]] = {}
        self._piece_count = 0

    def write(self, terminal: Terminal) -> str | None:
        """Write a terminal that is not empty; return None if it cannot be written."""
        return self._get_expressions(terminal).text

    def write_unpadded(self, terminal: Terminal) -> str | None:
        """Write a terminal that does not end with padding."""
        return self._get_expressions(terminal).unpadded

    def _get_expressions(self, terminal: Terminal) -> TerminalExpressions:
        value, endings = terminal.value, self._find_allowed_endings(terminal)
        key = value, endings
        if key not in self._expressions:
            if isinstance(value, str):
                self._expressions[key] = self._write_string(value, endings)
            else:
                self._expressions[key] = self._write_regex(terminal, value, endings)
        return self._expressions[key]

    def _find_allowed_endings(self, terminal: Terminal) -> frozenset[str]:
        """Return the prefixes of markers that a terminal may end with."""
        syntax = self._syntax
        if isinstance(syntax, QuotedSyntax):
            return frozenset()
        if terminal not in self._endings:
            self._endings[terminal] = frozenset(
                prefix
                for prefix in self._list_possible_endings(terminal, syntax)
                if not any(
                    self._follow_sets.can_continue_with(terminal, marker.removeprefix(prefix))
                    for marker in syntax.forbidden
                    if marker.startswith(prefix)
                )
            )
        return self._endings[terminal]

    def _list_possible_endings(self, terminal: Terminal, syntax: DelimitedSyntax) -> Iterable[str]:
        """Return the prefixes of markers that a terminal might end with, or more."""
        if isinstance(terminal.value, str):
            prefix = syntax.find_pending_prefix(terminal.value)
            return (prefix,) if prefix else ()
        chars = self._grammar.regexes.collect_chars(terminal.value)
        if chars is not None and not intersect(chars, syntax.first_chars):
            return ()
        return syntax.marker_prefixes

    def _write_string(self, text: str, endings: frozenset[str]) -> TerminalExpressions:
        if not text:
            return TerminalExpressions()
        if isinstance(self._syntax, DelimitedSyntax):
            prefix = self._syntax.find_pending_prefix(text)
            if prefix != "" and prefix not in endings:
                return TerminalExpressions()
            literal = quote_literal(text)
            is_padded = text[-1] in self._syntax.padding
            return TerminalExpressions(literal, None if is_padded else literal)
        pieces, plain = [], ""
        for char in text:
            chars = get_chars(char)
            if not intersect(chars, self._syntax.special):
                plain += char
                continue
            pieces += [quote_literal(plain)] if plain else []
            unescaped = intersect(chars, self._syntax.plain)
            alternatives = [to_regex_class(unescaped)] if unescaped else []
            alternatives += self._syntax.escape_regexes(chars)
            pieces.append(self._lark.add_terminal(f"/{'|'.join(alternatives)}/", "PIECE"))
            plain = ""
        pieces += [quote_literal(plain)] if plain else []
        return TerminalExpressions(self._lark.add_rule(" ".join(pieces), "text"))

    def _write_regex(
        self, terminal: Terminal, regex: RegexId, endings: frozenset[str]
    ) -> TerminalExpressions:
        chars = self._grammar.regexes.collect_chars(regex)
        if chars == ():
            return TerminalExpressions()
        if chars is not None and not intersect(chars, self._syntax.special):
            lexeme = self._add_lexeme(regex)
            return TerminalExpressions(lexeme, lexeme)
        if chars is not None and isinstance(self._syntax, QuotedSyntax):
            try:
                return TerminalExpressions(self._write_with_escapes(regex, self._syntax))
            except TooComplex:  # use the automaton
                pass
        return self._write_automaton(self._follow_sets.get_automaton(terminal), endings)

    def _add_lexeme(self, regex: RegexId) -> str:
        """Add a terminal for an expression as it is, without the empty string."""
        regexes = self._grammar.regexes
        body = f"/{regexes.to_regex(regex)}/"
        nonempty = " & /(?s:.+)/" if regexes.is_nullable(regex) else ""
        return self._lark.add_terminal(body + nonempty, "LEXEME")

    def _write_with_escapes(self, regex: RegexId, syntax: QuotedSyntax) -> str:
        """Write an expression as runs that each end with an escape, and a last run."""
        regexes = self._grammar.regexes
        paths: dict[RegexId, list[str]] = {}  # to what remains of the expression
        names: dict[RegexId, str] = {}
        alternatives, queue = [], [(regex, "")]
        for remaining, before in queue:
            last_run = regexes.restrict_to(remaining, syntax.plain)
            if last_run not in (regexes.empty_language, regexes.empty_string):
                alternatives.append(f"{before} {self._add_lexeme(last_run)}")
            if before and regexes.is_nullable(remaining):
                alternatives.append(before)
            for split in regexes.split_at_first(remaining, syntax.special, syntax.plain):
                if regexes.empty_language in (split.before, split.after):
                    continue
                if split.after not in names:
                    names[split.after] = self._lark.reserve("state")
                    queue.append((split.after, names[split.after]))
                escapes = "|".join(syntax.escape_regexes(split.chars))
                escape = self._lark.add_terminal(f"/{escapes}/", "PIECE")
                run = "" if split.before == regexes.empty_string else self._add_lexeme(split.before)
                run = f"({run})?" if run and regexes.is_nullable(split.before) else run
                paths.setdefault(split.after, []).append(f"{before} {run} {escape}")
                self._count_piece()
        for remaining, name in names.items():
            self._lark.define(name, " | ".join(dict.fromkeys(paths[remaining])))
        return self._lark.add_rule(" | ".join(dict.fromkeys(alternatives)), "terminal")

    def _count_piece(self) -> None:
        self._piece_count += 1
        if self._piece_count > MAX_PIECES:
            raise TooComplex

    def _write_automaton(
        self, automaton: Automaton, endings: frozenset[str]
    ) -> TerminalExpressions:
        """Add a rule for each state of an automaton: all paths that lead to it."""
        start = PieceState(0)
        pieces: Pieces = {}
        queue = [start]
        for source in queue:
            for target, regex in self._list_pieces(automaton, source, endings):
                if target not in pieces:
                    pieces[target] = {}
                    queue.append(target)
                pieces[target].setdefault(source, []).append(regex)
                self._count_piece()
        accepting = [state for state in pieces if state.accepting]
        useful = _find_states_leading_to(accepting, pieces)
        names = {state: self._lark.reserve("state") for state in pieces if state in useful}

        def list_paths(target: PieceState, excluded: Collection[str] = ()) -> list[str]:
            paths = []
            for source, source_pieces in pieces[target].items():
                allowed = [regex for regex in source_pieces if regex not in excluded]
                if allowed and (source in names or source == start):
                    piece = self._lark.add_terminal(f"/{'|'.join(allowed)}/", "PIECE")
                    paths.append(f"{names[source]} {piece}" if source in names else piece)
            return paths

        for state, name in names.items():
            self._lark.define(name, " | ".join(list_paths(state)))
        padding: list[str] = []
        if isinstance(self._syntax, DelimitedSyntax):
            padding = [escape_regex(char) for char in self._syntax.padding]
        unpadded = [path for state in accepting for path in list_paths(state, padding)]
        return TerminalExpressions(
            join_alternatives(names[state] for state in accepting) if accepting else None,
            self._lark.add_rule(" | ".join(unpadded), "unpadded") if unpadded and padding else None,
        )

    def _list_pieces(
        self, automaton: Automaton, source: PieceState, endings: frozenset[str]
    ) -> Iterator[tuple[PieceState, str]]:
        """Yield the pieces that may follow a state: the next state and a regular expression."""
        syntax = self._syntax
        for chars, target in automaton.transitions[source.state]:
            if not source.pending and (plain := intersect(chars, syntax.plain)):
                regex = to_regex_class(plain) + self._write_self_loop(automaton, target)
                yield _make_piece_state(automaton, target), regex
            if isinstance(syntax, QuotedSyntax):
                for escape in syntax.escape_regexes(intersect(chars, syntax.special)):
                    yield _make_piece_state(automaton, target), escape
        if isinstance(syntax, QuotedSyntax):
            return
        for char in syntax.padding:
            after = automaton.advance(source.state, char)
            if after is not None:
                yield _make_piece_state(automaton, after), escape_regex(char)
        for prefix, continuing in syntax.marker_prefixes.items():
            after = automaton.advance(source.state, prefix)
            if after is None:
                continue
            may_end = automaton.accepting[after] and prefix in endings
            yield PieceState(after, pending=True, accepting=may_end), escape_regex(prefix)
            for chars, target in automaton.transitions[after]:
                if deviating := subtract(intersect(chars, syntax.plain), continuing):
                    regex = escape_regex(prefix) + to_regex_class(deviating)
                    yield (
                        _make_piece_state(automaton, target),
                        regex + self._write_self_loop(automaton, target),
                    )

    def _write_self_loop(self, automaton: Automaton, state: int) -> str:
        """Match any number of plain characters that do not leave a state."""
        regex = ""
        for chars, target in automaton.transitions[state]:
            plain = intersect(chars, self._syntax.plain) if target == state else ()
            regex = f"{to_regex_class(plain)}*" if plain else regex
        return regex


def _make_piece_state(automaton: Automaton, state: int) -> PieceState:
    return PieceState(state, accepting=automaton.accepting[state])


def _find_states_leading_to(accepting: list[PieceState], pieces: Pieces) -> set[PieceState]:
    useful, queue = set(accepting), list(accepting)
    while queue:
        for source in pieces.get(queue.pop(), {}):
            if source not in useful:
                useful.add(source)
                queue.append(source)
    return useful
