"""Tokens that end a turn, by what the template writes behind a turn's text.

An added token right behind the text ends it, whether or not the tokenizer calls it special: a token
of its own (`<|im_end|>`), or the next role's, which the model must then write to stop (GLM). White
space may stand between. A token that is no added one never ends a turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tokenizers import Encoding

from engines.chat.pieces import Pieces


@dataclass(frozen=True, slots=True)
class TokenizedText:
    text: str
    encoding: Encoding
    added: Mapping[int, str]
    """texts of the tokenizer's added tokens, by id"""
    ids: list[int] = field(init=False)

    def __post_init__(self) -> None:
        # The encoding makes a list of them each time that it is asked.
        object.__setattr__(self, "ids", self.encoding.ids)

    def begin(self, char: int) -> int:
        """Place of the first token of the text from `char` on. A token that has begun before is of
        it if it has more of it than white space."""
        at, begun = self._around(char)
        if begun and not self.text[char : self._characters(at)[1]].strip():
            return at + 1
        return at

    def end(self, char: int) -> int:
        """Place after the last token of the text up to `char`. A token that goes on is of it."""
        at, begun = self._around(char)
        return at + begun

    def is_space(self, place: int) -> bool:
        """Whether a token stands for white space alone, or for nothing."""
        start, end = self._characters(place)
        return not self.text[start:end].strip()

    def _around(self, char: int) -> tuple[int, bool]:
        """The first token that reaches beyond `char`, and whether it begins before it."""
        for position in range(char, len(self.text)):
            at = self.encoding.char_to_token(position)
            if at is not None:  # or the tokenizer drops this character
                return at, self._start(at) < char
        return len(self.ids), False

    def _start(self, place: int) -> int:
        """Where a token's own text begins: some added tokens take the white space before them."""
        start, end = self._characters(place)
        own = self.added.get(self.ids[place])
        return start + max(self.text[start:end].find(own), 0) if own else start

    def _characters(self, place: int) -> tuple[int, int]:
        return self.encoding.token_to_chars(place) or (0, 0)


class TurnEnds:
    """The ends of turns under one template."""

    def __init__(
        self,
        pieces: Pieces,
        tokenized: Callable[[str], TokenizedText],
        declared: Sequence[int],
        *,
        can_call: bool,
    ) -> None:
        """`declared`: ids that the folder declares; the first ends a conversation whose template
        writes none. Raises InputError for a template that cannot be rendered."""
        text, char = pieces.last()
        final = _added_behind(tokenized(text), char)
        self.final = declared[0] if final is None else final
        """ends the last turn"""
        text, char = pieces.earlier()
        self.earlier = _added_behind(tokenized(text), char)
        """ends a turn that another message follows; None where the template writes none there"""
        self.tool: int | None = None
        """ends a turn with tool calls; None where the template writes none"""
        if can_call:
            text, char = pieces.called()
            self.tool = _added_behind(tokenized(text), char)
        ends = (self.final, self.earlier, self.tool)
        self.ids = frozenset({*declared, *(token for token in ends if token is not None)})

    def end(self, found: TokenizedText, begin: int, end: int) -> int:
        """Where a turn of these tokens ends: behind the first end token that only others and white
        space follow, or behind the one that follows the turn."""
        first = self._first_in_tail(found, begin, end)
        if first is not None:
            return first + 1
        follows = _behind_space(found, end)
        is_end = follows < len(found.ids) and (
            found.ids[follows] in self.ids or (follows == end and found.ids[follows] in found.added)
        )
        return follows + 1 if is_end else end

    def behind(self, found: TokenizedText, end: int, last_token: int | None) -> list[int]:
        """Ids that follow a turn which ends before this place, from its end token on; without that
        one where the turn's `last_token` is it."""
        first = self._first_in_tail(found, 0, end)
        start = end if first is None else first
        if first is None:
            while start and found.is_space(start - 1):
                start -= 1
        follows = _behind_space(found, start)
        if follows < len(found.ids) and found.ids[follows] == last_token in self.ids:
            return found.ids[follows + 1 :]
        return found.ids[start:]

    def _first_in_tail(self, found: TokenizedText, begin: int, end: int) -> int | None:
        first = None
        for place in range(end - 1, begin - 1, -1):
            if found.ids[place] in self.ids:
                first = place
            elif not found.is_space(place):
                break
        return first


def _added_behind(found: TokenizedText, char: int) -> int | None:
    """The added token that follows a character, but for white space; None if none does."""
    place = _behind_space(found, found.end(char))
    token = found.ids[place] if place < len(found.ids) else None
    return token if token in found.added else None


def _behind_space(found: TokenizedText, place: int) -> int:
    while place < len(found.ids) and found.is_space(place):
        place += 1
    return place
