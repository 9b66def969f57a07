"""A whole conversation as a template renders it, cut into what is read and what the assistant says.

Where a template marks the assistant's text with `{% generation %}`, its marks count. Elsewhere each
turn is what follows the rendering of all messages before it, and is verified: a template that
changes earlier text once more messages follow is refused, and the turn is named. Two differences
are harmless:

- an empty thought that comes and goes (Qwen3, GLM): each turn has it, as rollouts have it
- a header that opens a thought, where the turn has none (DeepSeek-R1): the header without it counts

An empty thought that no message says is read, not said. Where a header that opens a thought is
followed by one that the template drops, the thought is written as the model writes it: then the
template can keep it in the last turn only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from engines.chat.chat_turns import THINK
from engines.chat.kept_prefix import empty_thought_length
from engines.chat.pieces import OPEN_THOUGHT, Pieces, without_open_thought
from engines.chat.template import END, START
from engines.types import Message, Tool
from infra.errors import InputError

_SHOWN = 40


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
    """What a turn's marks enclose, and what follows."""
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
            raise _rewritten(pieces, at, closed, full)
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


def _thought_that_was_open(turn: Message, header: str, full: str, closed: str) -> str:
    """A thought that the template drops, although its header opens one, as the model wrote it."""
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
