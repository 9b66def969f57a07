"""Chat: see the package's docstring."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from engines.chat.folder import ChatFolder, load_chat_folder
from engines.chat.mode import Mode
from engines.chat.pieces import Pieces
from engines.chat.plain_texts import PlainTexts
from engines.chat.training_text import TrainingText, cut
from engines.chat.turns import END_THINK, THINK, Thought, ThoughtForm, TurnParser
from engines.types import AssistantTurn, Message, Problem, TokenIds, Tool, ToolCall
from infra.errors import InputError

_MARK = "Q0Q"
"""content of a placeholder turn, used to find the turn in the rendering"""
_ASKED = Message("user", 'What is 12 + 30?\nSay "rouge", \u8272 or #f00: `color = "..."`')
_TOOL = Tool("search", "Search the index.", {"q": "string"}, ("q",))


@dataclass(frozen=True, slots=True)
class _TurnEnd:
    """How the template ends a turn: GLM leaves the stop token to what follows, Qwen writes it."""

    stop: int | None
    tail: tuple[int, ...]
    """ids between the stop token and the next header, e.g. a line feed"""


class Chat:
    """Tokenizer and chat template of one model folder. Stateless and cheap to call."""

    def __init__(self, folder: ChatFolder) -> None:
        self._tokenizer = folder.tokenizer
        self._pieces = Pieces(folder.template)
        self._plain_texts = PlainTexts(lambda messages: cut(self._pieces, messages, (), False))
        self._special = {
            token for token, a in folder.tokenizer.get_added_tokens_decoder().items() if a.special
        }
        self._final_stop = self._plain_end() or folder.eos_ids[0]
        self._stops = {*folder.eos_ids, self._final_stop}
        self._parser = TurnParser(
            ThoughtForm(*self._pieces.thought_pads()), self._pieces.call_form()
        )
        self._tool_stop = self._first_after_call() if self.can_call_tools else None
        if self._tool_stop is not None:
            self._stops.add(self._tool_stop)
        self.stop_token_ids: tuple[int, ...] = tuple(sorted(self._stops))
        """ids at which generation ends, whichever comes first"""

    @classmethod
    def load(cls, folder: Path) -> Chat:
        """Raises InputError that names what the folder lacks or what its template does wrong."""
        return cls(load_chat_folder(folder))

    @property
    def template_file(self) -> str:
        """Name of the file that the chat template comes from."""
        return self._pieces.template.name

    @property
    def mode(self) -> Mode:
        """What decides whether the model thinks."""
        return self._pieces.mode

    def decided(self, problem: Problem) -> Problem:
        """The problem as this model is asked it: `thinking` is decided. Raises InputError."""
        return self.mode.decided(problem)

    @property
    def is_thinking_switchable(self) -> bool:
        """Whether the template has a switch for thoughts: whether the model may be hybrid."""
        return self._pieces.thinking_switchable

    def require_thinking_switch(self) -> None:
        """Raises InputError where the template writes the same with thinking on and off."""
        if not self.is_thinking_switchable:
            raise InputError(
                "nothink_share needs a chat template that reacts to `enable_thinking` or"
                f" `thinking`; {self.template_file} does not: set nothink_share to 0"
            )

    @property
    def writes_thoughts(self) -> bool:
        """Whether a turn's thought has a place of its own: it can be switched on, or the header
        opens it."""
        return self.is_thinking_switchable or self._pieces.opens_thought

    @property
    def can_call_tools(self) -> bool:
        """Whether the template writes tool calls in a form that `parse` understands."""
        return self._parser.calls is not None

    @property
    def num_tokens(self) -> int:
        """Size of the vocabulary with added tokens; the model's may be larger."""
        return self._tokenizer.get_vocab_size()

    @property
    def format_checksum(self) -> str:
        """Equal for chats that write conversations in the same tokens: that of the ids of the same
        prompts, with thinking on and off, with and without tools."""
        prompts = [
            self.prompt_ids(Problem("probe", "probe", (_ASKED,), tools=tools, thinking=thinking))
            for tools in ((), (_TOOL,))
            for thinking in (False, True)
            if self.can_call_tools or not tools
        ]
        return hashlib.sha256(json.dumps(prompts).encode()).hexdigest()

    @property
    def vocabulary(self) -> dict[str, int]:
        """Id of every token, added ones among them."""
        return self._tokenizer.get_vocab()

    def decode(self, token_ids: TokenIds) -> str:
        """Text with special tokens."""
        return self._tokenizer.decode(_as_list(token_ids), skip_special_tokens=False)

    def prompt_ids(self, problem: Problem) -> list[int]:
        """The problem's messages and the assistant's header. Raises InputError."""
        return self._encode(self._prompt(problem))

    def continuation_ids(
        self,
        problem: Problem,
        turns: Sequence[Message],
        new: Sequence[Message],
        last_token: int | None,
    ) -> list[int]:
        """Ids to append after an assistant's turn: `new` messages and the next turn's header.

        `turns` end with that turn; `last_token` is the id the engine produced last. Where that is
        the one with which the continuation starts (GLM ends a turn by the next role's token), it
        is not repeated.
        """
        called = bool(turns and turns[-1].tool_calls)
        end = self._tool_turn_end if called else self._plain_turn_end
        ids = [] if end.stop is None else [end.stop]
        ids += [*end.tail, *self._encode(self._pieces.continuation(new, bool(problem.thinking)))]
        return ids[1:] if ids[0] == last_token else ids

    def turn_ids(self, problem: Problem, turn: Message) -> list[int]:
        """A turn as the policy would have written it, with its stop token, if the template has one:
        what somebody else put into its mouth. Raises InputError."""
        ids, _ = self._split(self._encode(self._pieces.turn(turn, bool(problem.thinking))))
        return ids

    def training_ids(
        self, problem: Problem, turns: Sequence[Message]
    ) -> tuple[list[int], list[int]]:
        """Tokens of a solved conversation and its loss mask: 1 where the assistant wrote.

        The stop token of a turn is the assistant's; each is there once. Raises InputError when
        the template does not keep the prefix.
        """
        self._check_turns(problem, turns)
        self._check_tools(problem)
        text = self.training_text(
            [*problem.messages, *turns], problem.tools, thinking=bool(problem.thinking)
        )
        return self.masked_ids([text])[0]

    def training_text(
        self, messages: Sequence[Message], tools: Sequence[Tool], *, thinking: bool
    ) -> TrainingText:
        """A conversation whose last message is the assistant's, as the template renders it. Raises
        InputError that names the turn which it does not render as it was said."""
        if not tools and not thinking and (plain := self._plain_texts.cut(messages)) is not None:
            return plain
        return cut(self._pieces, messages, tools, thinking)

    def masked_ids(self, texts: Sequence[TrainingText]) -> list[tuple[list[int], list[int]]]:
        """Tokens and loss mask of each. Every turn is tokenised by itself, as a model writes it."""
        parts = [part for text in texts for part in _parts(text)]
        encoded = self._tokenizer.encode_batch_fast(parts, add_special_tokens=False)
        ids = iter(encoded)
        made: list[tuple[list[int], list[int]]] = []
        for text in texts:
            tokens = list(next(ids).ids)
            mask = [0] * len(tokens)
            for _ in text.exchanges:
                said, follow = self._mark_end(next(ids).ids, next(ids).ids)
                tokens += said + follow
                mask += [1] * len(said) + [0] * len(follow)
            made.append((tokens, mask))
        return made

    def parse(self, problem: Problem, token_ids: TokenIds) -> AssistantTurn:
        """One turn as the engine produced it, with its stop token (if it came to one)."""
        ids = _as_list(token_ids)
        stop = ids.pop() if ids and ids[-1] in self._stops else None
        turn = self._parser.parse(problem, self.decode(ids), self._thought(problem))
        if turn.error or stop is None:
            return turn
        fault = self._wrong_stop(stop, called=bool(turn.tool_calls))
        return replace(turn, error=fault) if fault else turn

    def _mark_end(self, piece: list[int], after: list[int]) -> tuple[list[int], list[int]]:
        """A turn's ids with its stop token, which may be the first of what comes after."""
        said, tail = self._split(piece)
        if said and said[-1] in self._stops:
            return said, [*tail, *after] if after else []
        if not after:
            return [*said, self._final_stop], []
        # A role's token, which comes next, ends the turn: the model must write it to stop.
        return ([*said, after[0]], after[1:]) if after[0] in self._special else (said, after)

    def _wrong_stop(self, stop: int, *, called: bool) -> str:
        """Where a role's token ends a turn, it must be the role that comes next."""
        tool_stop = self._tool_stop
        if tool_stop is None or tool_stop == self._final_stop or called == (stop == tool_stop):
            return ""
        token = self.decode([stop])
        return f"a tool call ends with {token}" if called else f"{token} without a tool call"

    def _thought(self, problem: Problem) -> Thought:
        header = self._pieces.opening(bool(problem.thinking)).rstrip()
        if header.endswith(THINK):
            return Thought.OPEN
        if header.endswith(END_THINK):
            return Thought.CLOSED
        wanted = problem.thinking and self.is_thinking_switchable
        return Thought.WRITTEN if wanted else Thought.OPTIONAL

    @cached_property
    def _plain_turn_end(self) -> _TurnEnd:
        return self._end_of(Message("assistant", _MARK))

    @cached_property
    def _tool_turn_end(self) -> _TurnEnd:
        return self._end_of(Message("assistant", _MARK, tool_calls=(ToolCall("t", {"k": "v"}),)))

    def _end_of(self, turn: Message) -> _TurnEnd:
        said, tail = self._split(self._encode(self._pieces.turn(turn, thinking=False)))
        return _TurnEnd(said[-1] if said and said[-1] in self._stops else None, tuple(tail))

    def _first_after_call(self) -> int:
        """The id that ends a turn with tool calls: its own stop token or the next role's."""
        stop = self._tool_turn_end.stop
        if stop is not None:
            return stop
        return self._encode(self._pieces.continuation([Message("tool", "x")], False))[0]

    def _plain_end(self) -> int | None:
        """The special token that the template writes right after a turn's text, if it does."""
        piece = self._pieces.turn(Message("assistant", _MARK), thinking=False)
        after = self._encode(piece[piece.rfind(_MARK) + len(_MARK) :])
        return after[0] if after and after[0] in self._special else None

    def _split(self, ids: list[int]) -> tuple[list[int], list[int]]:
        """A turn's ids up to its stop token, and the white space that the template adds."""
        for at in range(len(ids) - 1, -1, -1):
            if ids[at] in self._stops:
                return ids[: at + 1], ids[at + 1 :]
            if self.decode([ids[at]]).strip():
                break
        return ids, []

    def _prompt(self, problem: Problem) -> str:
        self._check_tools(problem)
        return self._pieces.prompt(problem)

    def _check_tools(self, problem: Problem) -> None:
        if problem.tools and not self.can_call_tools:
            raise InputError(
                f"problem {problem.id} has tools, but the chat template "
                f"{self.template_file} writes no tool calls in the GLM or Hermes form"
            )

    def _encode(self, text: str) -> list[int]:
        # The ids of `encode`, without finding out which characters each stands for.
        return self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids

    def _check_turns(self, problem: Problem, turns: Sequence[Message]) -> None:
        said = [turn.role == "assistant" for turn in turns]
        if not turns or not said[0] or not said[-1]:
            raise InputError(f"problem {problem.id}: turns must start and end with the assistant")
        if any(a and b for a, b in pairwise(said)):
            raise InputError(f"problem {problem.id}: two turns of the assistant follow each other")
        if self.is_thinking_switchable and not problem.thinking and any(t.reasoning for t in turns):
            raise InputError(f"problem {problem.id} has thinking off, but a turn has reasoning")


def _as_list(token_ids: TokenIds) -> list[int]:
    return list(token_ids) if isinstance(token_ids, Sequence) else token_ids.tolist()


def _parts(text: TrainingText) -> Iterator[str]:
    yield text.prompt
    for exchange in text.exchanges:
        yield from exchange
