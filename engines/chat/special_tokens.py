"""Tokens that end a turn, and tokens of a model's own format inside somebody's text.

What a template writes behind a turn's text tells what ends the turn. An added token right behind
the text ends it, whether or not the tokenizer calls it special: a token of its own (`<|im_end|>`),
or the next role's, which the model must then write to stop (GLM). White space may stand between. A
token that is no added one never ends a turn.

A tokenizer makes one token of `<|im_end|>` wherever it stands, so a text that holds it would end a
turn or open another one, in training as in prompts. Such texts are refused everywhere: rows,
prompts, tool results, requests of agents. Tags of thoughts and calls are no control tokens: texts
may hold them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tokenizers import AddedToken, Encoding

from engines.chat.call_forms import CallForm
from engines.chat.mode import Thoughts
from engines.chat.pieces import Pieces
from engines.types import Json, Message, Tool
from infra.errors import InputError


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
        """Return whether a token stands for white space alone, or for nothing."""
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
        calls: CallForm | None,
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
        self._inner: int | None = None
        """ends messages within a turn, and stands behind an earlier turn in the place of its end"""
        if pieces.mode.thoughts is Thoughts.CHANNEL:
            self._inner, self.earlier = self.earlier, None
        self.tool: int | None = None
        """ends a turn with tool calls; None where the template writes none"""
        if calls is not None:
            text, char = pieces.called(calls)
            self.tool = _added_behind(tokenized(text), char)
        ends = (self.final, self.earlier, self.tool)
        self.ids = frozenset({*declared, *(token for token in ends if token is not None)})
        if self._inner in self.ids:
            raise InputError(
                f"generation_config.json: eos_token_id names {self._inner}, with which the chat"
                f" template {pieces.template.name} ends a thought: a model could not go on to its"
                " answer. Take it out there and in config.json"
            )

    def end(self, found: TokenizedText, begin: int, end: int) -> int:
        """Return where a turn of these tokens ends: behind the first end token that only others and
        white space follow, or behind the one that follows the turn."""
        first = self._first_in_tail(found, begin, end)
        if first is not None:
            return first + 1
        if self._inner is not None:
            return end - (end > begin and found.ids[end - 1] == self._inner)
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
        if last_token in self.ids and found.ids[follows : follows + 1] in (
            [last_token],
            [self._inner],
        ):
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


_TAG = re.compile(r"think|tool_call>|tool_response>|tools>|arg_key>|arg_value>")


class ControlTokens:
    """The control tokens of one tokenizer and template."""

    def __init__(
        self, template: str, added: Mapping[int, AddedToken], ends: frozenset[int], written: str
    ) -> None:
        """`template`: the name of its file; `written`: a conversation that it wrote, without
        thoughts and tools."""
        self._template = template
        own = {
            token.content
            for number, token in added.items()
            if token.special or number in ends or token.content in written
        }
        own = {text for text in own if text.strip() and not _TAG.search(text)}
        longest_first = sorted(own, key=lambda text: (-len(text), text))
        self._any = re.compile("|".join(map(re.escape, longest_first))) if own else None

    def holds(self, text: str) -> bool:
        """Return whether a token is one of them: then no text has it."""
        return self._any is not None and self._any.fullmatch(text) is not None

    def refuse(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), where: str = "messages"
    ) -> None:
        """Raises InputError that names the message and the token."""
        if self._any is None:
            return
        for number, message in enumerate(messages):
            for text in _texts(message):
                if found := self._any.search(text):
                    raise self._refused(f"{where}[{number}]", found.group())
        for tool in tools:
            for text in _strings([tool.name, tool.description, dict(tool.schema or {})]):
                if found := self._any.search(text):
                    raise self._refused(f"tool {tool.name}", found.group())

    def _refused(self, where: str, token: str) -> InputError:
        return InputError(
            f"{where}: its text holds {token}, a control token of the model's own format"
            f" ({self._template}): the model would read it as a part of the format, not of the"
            f" text. Take it out, or write it in another way, e.g. {token[0]} {token[1:]}"
        )


def _texts(message: Message) -> Iterator[str]:
    yield message.content
    if message.reasoning:
        yield message.reasoning
    for call in message.tool_calls:
        yield call.name
        yield from _strings(call.arguments)


def _strings(value: Json) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
    elif isinstance(value, dict):
        yield from value
        for item in value.values():
            yield from _strings(item)
