"""A whole text as tokens, and which of them stand for a part of it.

A conversation is tokenised as one text, never piece by piece. Many tokenizers write another token
at the beginning of a text than within it (SentencePiece's space in front of the first word), and
most join characters of two pieces where they meet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tokenizers import Encoding


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
