"""A whole conversation as a template renders it, cut into what is read and what the assistant says.

Where a template marks the assistant's text with `{% generation %}`, its marks count. Elsewhere each
turn is what follows the rendering of all messages before it, and is verified: a template that
changes earlier text once more messages follow is refused, and the turn is named. Three differences
are harmless:

- an empty thought that comes and goes (Qwen3, GLM): each turn has it, as rollouts have it
- a header that opens a thought, where the turn has none (DeepSeek-R1): the header without it counts
- the thought of a call, which stands in the answer's prompt and not before the answer (gpt-oss): it
  counts, as the model answers behind it

An empty thought that no message says is read, not said. Where a header that opens a thought is
followed by one that the template drops, the thought is written as the model writes it: then the
template can keep it in the last turn only.

Conversations of plain text are rendered by filling a rendering that was made once. Templates treat
some texts in a way of their own: they trim white space, look for tags, for switches such as
`/no_think`, or for anything else that stands in the template as a text. A text without any of these
is written as it is, so that conversations of the same roles and the same system message differ in
their texts alone. That is tried for each such shape, with texts of several kinds; a template that
fails once is rendered whole each time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TypeAlias

from engines.chat.chat_turns import END_THINK, THINK
from engines.chat.mode import Thoughts
from engines.chat.pieces import OPEN_THOUGHT, Pieces, empty_thought_length, without_open_thought
from engines.chat.template import END, START, Literals
from engines.types import Message, Tool
from infra.errors import InputError

_SHOWN = 40
_SPECIAL = ("<", "\ue000", "\ue001", "/no", "/think")
_SLOT = re.compile(r"Zq(\d+)qZ")
_PROBES = (
    "7",
    "Two words, and\nanother line:\n\n- \u00fcber \u4e2d\u6587 \U0001f600",
    "{{ x }} {% y %} \"quoted\" 'single' \\n $a^2$ [0] #",
    "a long text " * 2000 + "end",
)
_SPACES = (
    *("\t", "\r", "\r\n", "\n\n\n", "  ", " \n", "\n ", "\v", "\f", "\x1c", "\x85"),
    *("\xa0", "\u2028", "\u200b", "\ufeff", "&"),
)
"""that a template may change without naming them, e.g. where it takes a text apart into lines"""
_Shape: TypeAlias = tuple[tuple[str, str], ...]
_Filling: TypeAlias = tuple[tuple[str, ...], tuple[int, ...]]
"""literals, and the messages whose texts stand between them"""


@dataclass(frozen=True, slots=True)
class TrainingText:
    """The text before the first turn; then each turn and what follows it, up to the next."""

    prompt: str
    exchanges: Sequence[tuple[str, str]]

    @property
    def whole(self) -> str:
        return self.prompt + "".join(said + after for said, after in self.exchanges)


def cut(
    pieces: Pieces, messages: Sequence[Message], tools: Sequence[Tool], thinking: bool
) -> TrainingText:
    """Raises InputError that names the turn which cannot be rendered as it was said."""
    turns = [at for at, message in enumerate(messages) if message.role == "assistant"]
    for at in turns if pieces.mode.thoughts is Thoughts.CHANNEL else ():
        if messages[at].tool_calls and messages[at].content.strip():
            raise InputError(
                f"{pieces.template.name}: messages[{at}]: the chat template writes the text of a"
                " turn with calls as its thought; put it into `reasoning_content`, or leave it out"
            )
    if pieces.template.marks_generation:
        found = _by_marks(pieces, messages, tools, thinking, turns)
    else:
        found = _by_prefix(pieces, messages, tools, thinking, turns)
    for at, (said, _) in zip(turns, found.exchanges, strict=True):
        _check_complete(pieces, at, messages[at], said)
    return _without_unsaid_thoughts(pieces, found, [messages[at] for at in turns])


def _without_unsaid_thoughts(
    pieces: Pieces, text: TrainingText, turns: Sequence[Message]
) -> TrainingText:
    """Empty thoughts that no message says, put to what is read before the turn."""
    read, exchanges = text.prompt, list[tuple[str, str]]()
    for turn, (said, after) in zip(turns, text.exchanges, strict=True):
        if turn.reasoning is None and not turn.content.lstrip().startswith(THINK):
            opened = OPEN_THOUGHT.search(read)
            begun = opened.group() if opened else ""
            length = empty_thought_length(begun + said, pieces.thought_pad) - len(begun)
            if not opened and said.lstrip().startswith(END_THINK):  # the header has no other half
                length = len(said) - len(said.lstrip()) + len(END_THINK)
            read, said = read + said[: max(length, 0)], said[max(length, 0) :]
        exchanges.append((read, said))
        read = after
    follows = [*(read for read, _ in exchanges[1:]), read]
    said = [said for _, said in exchanges]
    return TrainingText(exchanges[0][0], list(zip(said, follows, strict=True)))


def _by_marks(
    pieces: Pieces,
    messages: Sequence[Message],
    tools: Sequence[Tool],
    thinking: bool,
    turns: Sequence[int],
) -> TrainingText:
    def render(count: int, *, is_open: bool) -> str:
        return pieces.template.render(
            messages[:count], tools=tools, thinking=thinking, open_turn=is_open, marked=True
        )

    prompt, *parts = render(len(messages), is_open=False).split(START)
    blocks = [part.partition(END) for part in parts]
    is_paired = END not in prompt and all(part.count(END) == 1 for part in parts)
    begins = list(range(len(turns)))
    if is_paired and len(blocks) > len(turns):  # some turns have several, e.g. one for their end
        begins = [render(at, is_open=True).count(START) for at in turns]
    groups = [blocks[a:b] for a, b in pairwise([*begins, len(blocks)])]
    if not is_paired or begins[0] != 0 or not all(groups) or len(blocks) < len(turns):
        raise InputError(
            f"{pieces.template.name}: `generation` marks {len(parts)} turns of {len(turns)}; or a"
            f" message holds {START!r} or {END!r}, which mark the assistant's text"
        )
    return TrainingText(prompt, [_joined(pieces, group) for group in groups])


def _joined(pieces: Pieces, blocks: Sequence[tuple[str, str, str]]) -> tuple[str, str]:
    """Return what a turn's marks enclose, and what follows."""
    said, _, after = blocks[0]
    for more, _, follows in blocks[1:]:
        if after.strip():
            raise InputError(
                f"{pieces.template.name}: `generation` marks parts of one turn, and leaves out"
                f" {after[:_SHOWN]!r} between them: put it around the whole turn"
            )
        said, after = said + after + more, follows
    return said, after


def _by_prefix(
    pieces: Pieces,
    messages: Sequence[Message],
    tools: Sequence[Tool],
    thinking: bool,
    turns: Sequence[int],
) -> TrainingText:
    def render(count: int, *, is_open: bool) -> str:
        return pieces.template.render(
            messages[:count], tools=tools, thinking=thinking, open_turn=is_open
        )

    prompt, before = "", ""
    exchanges: list[tuple[str, str]] = []
    for number, at in enumerate(turns):
        header = render(at, is_open=True)
        full = render(at + 1, is_open=False)
        closed = without_open_thought(header, full)
        thought = _thought_that_was_open(messages[at], header, full, closed)
        if not full.startswith(closed):
            behind = _behind_bare_turns(pieces, messages[: at + 1], tools, thinking)
            if behind is None:
                raise _rewritten(pieces, at, closed, full)
            full = closed + behind
        if thought:
            full = header + thought + full[len(closed) :]
        else:
            header = closed
        if number == 0:
            prompt = header
        else:
            follow = pieces.follow(before, header)
            if follow is None:
                raise _rewritten(pieces, turns[number - 1], before, header)
            said, _ = exchanges[-1]
            exchanges[-1] = (said[: len(said) - follow.dropped], follow.text)
        exchanges.append((full[len(header) :], ""))
        before = full
    return TrainingText(prompt, exchanges)


def _behind_bare_turns(
    pieces: Pieces, messages: Sequence[Message], tools: Sequence[Tool], thinking: bool
) -> str | None:
    """Return the last turn as it is written behind turns without thoughts; None if no earlier turn
    has one, or it makes no difference. gpt-oss's template has the thought of a call in the prompt
    of the answer, and drops it once the answer stands there."""
    *before, last = messages
    if not any(turn.reasoning for turn in before):
        return None
    bare = [replace(turn, reasoning=None) for turn in before]
    header = pieces.template.render(bare, tools=tools, thinking=thinking, open_turn=True)
    full = pieces.template.render([*bare, last], tools=tools, thinking=thinking)
    return full[len(header) :] if full.startswith(header) else None


def _thought_that_was_open(turn: Message, header: str, full: str, closed: str) -> str:
    """Return a thought that the template drops, although its header opens one, as the model wrote
    it.
    """
    is_open = closed != header and OPEN_THOUGHT.search(header) is not None
    if not turn.reasoning or not is_open or full[len(closed) :].lstrip().startswith(THINK):
        return ""
    is_closed_later = full.startswith("</think>", len(closed))  # DeepSeek-V3.1
    return turn.reasoning.strip() + ("" if is_closed_later else "\n</think>\n\n")


def _rewritten(pieces: Pieces, turn: int, expected: str, found: str) -> InputError:
    pairs = zip(found, expected, strict=False)
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(found), len(expected)))
    return InputError(
        f"{pieces.template.name}: messages[{turn}]: the chat template does not keep the prefix: it"
        f" changes this turn once more messages follow. At character {at} it writes"
        f" {found[at : at + _SHOWN]!r} where {expected[at : at + _SHOWN]!r} was. Split the row, one"
        " for each thought that is to be learned, or use a template that keeps earlier turns"
    )


def _check_complete(pieces: Pieces, at: int, turn: Message, said: str) -> None:
    """The template wrote all that the turn says."""
    missing = ""
    if turn.content.strip() not in said:
        missing = "text"
    elif turn.reasoning and turn.reasoning.strip() not in said:
        missing = "thought"
    elif any(call.name not in said for call in turn.tool_calls):
        missing = "tool calls"
    if missing:
        raise InputError(
            f"{pieces.template.name}: messages[{at}]: the chat template drops the turn's {missing}"
        )


_SHAPES = 1024
"""that are kept"""
Cut: TypeAlias = Callable[[Sequence[Message]], TrainingText]


class PlainTexts:
    """Renderings by shape."""

    def __init__(self, cut: Cut, literals: Callable[[], Literals]) -> None:
        """`cut` renders a conversation without thoughts and tools; `literals` are those of the
        template."""
        self._cut = cut
        self._literals = literals
        self._known: dict[_Shape, list[_Filling] | None] = {}

    def cut(self, messages: Sequence[Message]) -> TrainingText | None:
        """The conversation as the template renders it; None for one that is not plain."""
        if not all(map(_is_plain, messages)) or self._names_any(messages):
            return None
        shape = tuple((m.role, m.content if m.role == "system" else "") for m in messages)
        if shape not in self._known:
            if len(self._known) >= _SHAPES:
                self._known.clear()
            self._known[shape] = self._tried(messages)
        found = self._known[shape]
        if found is None:
            return None
        texts = [message.content for message in messages]
        prompt, *rest = [_filled(filling, texts) for filling in found]
        return TrainingText(prompt, list(zip(rest[::2], rest[1::2], strict=True)))

    def _names_any(self, messages: Sequence[Message]) -> bool:
        """Return whether a text holds what the template writes in another way."""
        inside, at_ends = self._changed
        return any(
            any(part in message.content for part in inside)
            or message.content.startswith(at_ends)
            or message.content.endswith(at_ends)
            for message in messages
        )

    @cached_property
    def _changed(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Parts of texts that the template changes, and those at which its texts begin or end."""
        found = self._literals()
        parts = dict.fromkeys((*_SPACES, *(each for each in found.all if each)))
        tried = [each for each in parts if not any(special in each for special in _SPECIAL)]
        kept = self._keeps("".join(f"a{part}b" for part in tried))
        inside = () if kept else tuple(part for part in tried if not self._keeps(f"a{part}b"))
        return inside, tuple(filter(None, found.at_ends))

    def _keeps(self, text: str) -> bool:
        """Return whether this text is written as it is."""
        asked = [Message("user", "Zq0qZ"), Message("assistant", "Zq1qZ")] * 2
        try:
            made = [_filling(part) for part in _parts(self._cut(asked))]
            found = _parts(self._cut(_with_texts(asked, lambda _: text)))
        except Exception:  # whatever it is, rendering the row itself will say it
            return False
        return [_filled(each, [text] * len(asked)) for each in made] == found

    def _tried(self, messages: Sequence[Message]) -> list[_Filling] | None:
        """None for a shape that cannot be filled so, or that the template refuses."""
        try:
            made = [
                _filling(part)
                for part in _parts(self._cut(_with_texts(messages, lambda at: f"Zq{at}qZ")))
            ]
            for first in range(len(_PROBES)):
                probe = _with_texts(messages, lambda at, n=first: _PROBES[(at + n) % len(_PROBES)])
                texts = [message.content for message in probe]
                if [_filled(each, texts) for each in made] != _parts(self._cut(probe)):
                    return None
        except Exception:  # whatever it is, rendering the row itself will say it
            return None
        return made


def _is_plain(message: Message) -> bool:
    text = message.content
    if message.role == "tool" or message.tool_calls or message.reasoning is not None or not text:
        return False
    if text[0].isspace() or text[-1].isspace():
        return False
    return not any(special in text for special in _SPECIAL)


def _with_texts(messages: Sequence[Message], text: Callable[[int], str]) -> list[Message]:
    return [
        message if message.role == "system" else replace(message, content=text(at))
        for at, message in enumerate(messages)
    ]


def _parts(text: TrainingText) -> list[str]:
    return [text.prompt, *(part for exchange in text.exchanges for part in exchange)]


def _filling(text: str) -> _Filling:
    pieces = _SLOT.split(text)
    return tuple(pieces[::2]), tuple(map(int, pieces[1::2]))


def _filled(filling: _Filling, texts: Sequence[str]) -> str:
    literals, slots = filling
    made = [literals[0]]
    for slot, literal in zip(slots, literals[1:], strict=True):
        made += (texts[slot], literal)
    return "".join(made)
