"""Chat: see the package's docstring."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from engines.chat import harmony, template_bounds
from engines.chat.call_forms import FORMS
from engines.chat.chat_folder import ChatFolder, load_chat_folder
from engines.chat.chat_turns import END_THINK, THINK, Thought, ThoughtForm, TurnParser
from engines.chat.completeness import Completeness
from engines.chat.harmony import HarmonyParser
from engines.chat.mode import FREELY, Mode, Thoughts
from engines.chat.pieces import Pieces
from engines.chat.special_tokens import ControlTokens, TokenizedText, TurnEnds
from engines.chat.template import DATE
from engines.chat.training_text import PlainTexts, TrainingText, cut
from engines.types import AssistantTurn, Message, Problem, TokenIds, Tool
from infra.errors import InputError

_ASKED = Message("user", 'What is 12 + 30?\nSay "rouge", \u8272 or #f00: `color = "..."`')
_TOOL = Tool("search", "Search the index.", {"q": "string"}, ("q",))

_EFFORT = "reasoning_effort"
_HEADER = 16
"""tokens before a turn in which its header ends"""


class Chat:
    """Tokenizer and chat template of one model folder. Stateless and cheap to call."""

    def __init__(self, folder: ChatFolder) -> None:
        self._tokenizer = folder.tokenizer
        added = folder.tokenizer.get_added_tokens_decoder()
        self._added = {token: known.content for token, known in added.items()}
        self._pieces = Pieces(folder.template)
        self._plain_texts = PlainTexts(
            lambda messages: cut(self._pieces, messages, (), False),
            lambda: self._pieces.template.literals,
        )
        form = self._pieces.call_form()
        has_channel = self.mode.thoughts is Thoughts.CHANNEL
        pads = self._pieces.thought_pads()
        self._thoughts = harmony.THOUGHTS if has_channel else ThoughtForm(*pads)
        self._parser = (HarmonyParser if has_channel else TurnParser)(
            self._thoughts, form, self._pieces.calls_once, self._pieces.have_ids(form)
        )
        self._ends = TurnEnds(self._pieces, self._whole, folder.eos_ids, calls=form)
        earlier, start = self._pieces.earlier()[0], self._pieces.template.start_text
        self._control = ControlTokens(self.template_file, added, self._ends.ids, earlier)
        self._folder_notes = folder.notes
        self._start = start if earlier.startswith(start) else ""
        """what every text begins with"""
        self._completeness = Completeness(self._pieces)
        self.stop_token_ids: tuple[int, ...] = tuple(sorted(self._ends.ids))
        """ids at which generation ends, whichever comes first"""

    @classmethod
    def load(cls, folder: Path, template: str = "") -> Chat:
        """`template`: a text in place of the folder's own. Raises InputError that names what the
        folder lacks or what its template does wrong."""
        with template_bounds.together():
            return cls(load_chat_folder(folder, template))

    @property
    def template_file(self) -> str:
        """Name of the file that the chat template comes from."""
        return self._pieces.template.name

    @property
    def mode(self) -> Mode:
        """Return what decides whether the model thinks."""
        return self._pieces.mode

    def decided(self, problem: Problem) -> Problem:
        """Return the problem with `thinking` decided for this model. Raises InputError."""
        return self.mode.decided(problem)

    @property
    def is_thinking_switchable(self) -> bool:
        """Say whether the template has a switch for thoughts: whether the model may be hybrid."""
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
        """Say whether a turn's thought has a place of its own: it can be switched on, the header
        opens it, or it has a channel."""
        has_channel = self.mode.thoughts is Thoughts.CHANNEL
        return self.is_thinking_switchable or self._pieces.opens_thought or has_channel

    def notes(self) -> Iterator[str]:
        """List what is good to know of the template and tokenizer, each beginning with the file."""
        if self._pieces.template.is_dated:
            yield (
                f"{self.template_file}: the chat template writes a date: here it is always"
                f" {DATE:%d %B %Y}, in training and in rollouts"
            )
        if _EFFORT in self._pieces.template.text:
            yield (
                f"{self.template_file}: the chat template writes a `{_EFFORT}`: here it is always"
                " the template's own, in training and in rollouts"
            )
        if self.can_call_tools and not self.lists_tools([_ASKED], [_TOOL]):
            yield (
                f"{self.template_file}: the chat template writes tool calls and lists no tools:"
                " where there are tools, a system message has to name each with its parameters"
            )
        yield from self._folder_notes
        if self._ends.earlier is None:
            yield (
                f"{self.template_file}: the chat template writes no end token behind a turn that"
                " another message follows: such a turn is trained without one, the last one with"
                f" {self.decode([self._ends.final])}"
            )
        if not self._keeps_prompts():
            yield (
                f"{self.template_file}: the tokenizer makes other tokens of the end of a prompt"
                " once an answer follows: training sees these, a rollout's prompt the others; end"
                " the header of the assistant's turn without white space"
            )

    def _keeps_prompts(self) -> bool:
        """Say whether the tokens of a prompt are the first ones of a whole conversation."""
        for word in ("The", "I", "Yes", "Hi", "1", "("):
            text, start = self._pieces.said(Message("assistant", word), thinking=False)
            prompt = self._encode(text[:start])
            if self._encode(text)[: len(prompt)] != prompt:
                return False
        return True

    @property
    def can_call_tools(self) -> bool:
        """Say whether the template writes tool calls in a form that `parse` understands."""
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

    def written_ids(self, first: int) -> list[int]:
        """Return the ids from `first` on of tokens that texts and turns may come to: all but
        control tokens, and the ends of turns."""
        beyond = [(text, n) for text, n in self.vocabulary.items() if n >= first]
        return [n for text, n in beyond if n in self._ends.ids or not self._control.holds(text)]

    def decode(self, token_ids: TokenIds) -> str:
        """Text with special tokens."""
        return self._tokenizer.decode(_as_list(token_ids), skip_special_tokens=False)

    def text_ids(self, text: str) -> list[int]:
        """Return the token ids of a text by itself."""
        return self._encode(text)

    def may_think(self, problem: Problem) -> bool:
        """Say whether the model's turn may have a thought."""
        thinking = self.decided(problem).thinking
        return self.mode.thoughts in FREELY if thinking is None else thinking

    @property
    def thought_end_ids(self) -> tuple[int, ...]:
        """Return the token that ends a thought; empty where several do."""
        ids = self._encode(self._thoughts.closing)
        return tuple(ids) if len(ids) == 1 else ()

    def open_thought(self, problem: Problem, token_ids: TokenIds) -> bool | None:
        """Say whether a turn's first tokens leave a thought open; None: one may still begin."""
        return self._thoughts.is_open(self.decode(token_ids), self._thought(problem))

    def thought_closing_ids(self, token_ids: TokenIds) -> list[int]:
        """Return what the template writes to end a thought that these first tokens leave open."""
        return self._encode(self._thoughts.closed_by(self.decode(token_ids)))

    def prompt_ids(self, problem: Problem) -> list[int]:
        """The problem's messages and the assistant's header. Raises InputError."""
        return self._encode(self._prompt(problem))

    def excess(self, problem: Problem, context: int) -> str:
        """Why its prompt leaves no room for an answer in a context of so many tokens; empty if it
        does. Raises InputError."""
        return too_long(len(self.prompt_ids(self.decided(problem))), context - 1, context)

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
        self._control.refuse(new, where="new messages")
        called = turns[-1].tool_calls
        text, ended = self._pieces.continuation(new, bool(problem.thinking), called)
        found = self._whole(text)
        return self._ends.behind(found, found.begin(ended), last_token)

    def turn_ids(self, problem: Problem, turn: Message) -> list[int]:
        """Return a turn as the policy would have written it, with its stop token, if the template
        has one: what somebody else put into its mouth. Raises InputError."""
        self._control.refuse([turn])
        text, start = self._pieces.said(turn, bool(problem.thinking))
        found = self._whole(text)
        begin, end = found.begin(start), found.end(len(text))
        first_end = self._ends.end(found, begin, end)
        return found.ids[begin:first_end]

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
        """Return a conversation whose last message is the assistant's, as the template renders it.
        Raises InputError that names the turn which it does not render as it was said."""
        self._control.refuse(messages, tools)
        text = self._text(messages, tools, thinking)
        self._completeness.check(messages, tools, thinking=thinking)
        return text

    def document_text(self, text: str) -> TrainingText:
        """Return a text that is no conversation, and begins as conversations do; a control token in
        it is that token."""
        return TrainingText(self._start, [(text, "")])

    def lists_tools(self, messages: Sequence[Message], tools: Sequence[Tool]) -> bool:
        """Say whether the template writes the tools of such a conversation, or a system message
        names each with its parameters."""
        said = "\n".join(message.content for message in messages if message.role == "system")
        if all(name in said for tool in tools for name in (tool.name, *tool.parameters)):
            return True
        return self._completeness.lists_tools(messages, tools)

    def _text(
        self, messages: Sequence[Message], tools: Sequence[Tool], thinking: bool
    ) -> TrainingText:
        if not tools and not thinking and (plain := self._plain_texts.cut(messages)) is not None:
            return plain
        return cut(self._pieces, messages, tools, thinking)

    def masked_ids(self, texts: Sequence[TrainingText]) -> list[tuple[list[int], list[int]]]:
        """Tokens and loss mask of each: those of the whole rendering, up to the end of the last
        turn, with a stop token there even if the template writes none."""
        wholes = [text.whole for text in texts]
        encoded = self._tokenizer.encode_batch(wholes, add_special_tokens=False)
        return [
            self._masked(text, TokenizedText(whole, encoding, self._added))
            for text, whole, encoding in zip(texts, wholes, encoded, strict=True)
        ]

    def _masked(self, text: TrainingText, found: TokenizedText) -> tuple[list[int], list[int]]:
        ids = list(found.ids)
        mask = [0] * len(ids)
        char, ended = len(text.prompt), 0
        for said, after in text.exchanges:
            begin = max(found.begin(char), ended)
            ended = self._ends.end(found, begin, max(found.end(char + len(said)), begin))
            mask[begin:ended] = [1] * (ended - begin)
            char += len(said) + len(after)
        del ids[ended:], mask[ended:]
        if not ids or ids[-1] not in self._ends.ids:
            ids.append(self._ends.final)
            mask.append(1)
        return ids, mask

    def parse(self, problem: Problem, token_ids: TokenIds, before: TokenIds = ()) -> AssistantTurn:
        """One turn as the engine produced it, with its stop token (if it came to one). `before`:
        what it followed, where that is not the problem's prompt."""
        ids = _as_list(token_ids)
        stop = ids.pop() if ids and ids[-1] in self._ends.ids else None
        thought = self._thought(problem)
        if len(before) and thought is Thought.OPEN:
            header = self.decode(before[-_HEADER:]).rstrip()
            if not header.endswith(THINK):  # as DeepSeek's, which has no header behind results
                thought = Thought.OPTIONAL
        turn = self._parser.parse(problem, self.decode(ids), thought)
        if turn.error or stop is None:
            return turn
        fault = self._wrong_stop(stop, called=bool(turn.tool_calls))
        return replace(turn, error=fault) if fault else turn

    def _wrong_stop(self, stop: int, *, called: bool) -> str:
        """Where a role's token ends a turn, it must be the role that comes next."""
        tool_stop = self._ends.tool
        if tool_stop is None or tool_stop == self._ends.final or called == (stop == tool_stop):
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

    def _prompt(self, problem: Problem) -> str:
        self._check_tools(problem)
        self._control.refuse(problem.messages, problem.tools)
        text = self._pieces.prompt(problem)
        self._completeness.check(
            problem.messages, problem.tools, thinking=bool(problem.thinking), is_open=True
        )
        return text

    def _check_tools(self, problem: Problem) -> None:
        if problem.tools and not self.can_call_tools:
            raise InputError(
                f"problem {problem.id} has tools, but the chat template "
                f"{self.template_file} writes no tool calls in one of the forms that are read:"
                f" {', '.join(sorted({form.name for form in FORMS}))}"
            )
        if problem.tools and self._ends.tool is None:
            raise InputError(
                f"problem {problem.id} has tools, but the chat template {self.template_file}"
                " writes no added token of the tokenizer behind a turn with calls: a model could"
                " not end such a turn. Write the end token there"
            )
        if problem.tools and not self.lists_tools(problem.messages, problem.tools):
            raise InputError(
                f"problem {problem.id} has tools, but the chat template {self.template_file} lists"
                " none; name each with its parameters in a system message, or use a template that"
                " lists them"
            )

    def _whole(self, text: str) -> TokenizedText:
        encoding = self._tokenizer.encode_batch([text], add_special_tokens=False)[0]
        return TokenizedText(text, encoding, self._added)

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


def too_long(count: int, most: int, context: int) -> str:
    """Say that so many tokens are more than the `most` that fit; empty if they are not."""
    return f"has {count} tokens; the model's context holds {context}" if count > most else ""
