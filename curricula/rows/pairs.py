"""A row as answers to one prompt of which some are better: a pair, a ranked list, or one answer
with a verdict.

TRL        {"prompt": ..., "chosen": ..., "rejected": ...}, texts or messages; without a
           prompt both are whole conversations
           {"prompt": ..., "completion": ..., "label": true}
OpenAI     {"input": {"messages": [...]}, "preferred_output": [...],
           "non_preferred_output": [...]}
Anthropic  {"chosen": "\\n\\nHuman: ...\\n\\nAssistant: ...", "rejected": ...}
lists      {"prompt": ..., "responses": ["a", "b", "c"], "scores": [1, 9, 4]}, or `ranks`, 1 being
           the best; or objects, each with its text and its score or rank (UltraFeedback, Nectar)
two        {"prompt": ..., "response_a": ..., "response_b": ..., "winner": "b"}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from curricula.rows.asked import (
    ASKED,
    TALKS,
    Asked,
    read_asked,
    read_system,
    spoken_turns,
    what_follows,
    with_system,
)
from curricula.rows.conversation import Columns, Conversation, Layout, fault_of
from curricula.rows.fields import Fields, lacking
from curricula.rows.layouts import read_row, read_tools, refuse_unread
from curricula.rows.meaning import LEARNED, Meaning, carries, refuse_meaning, refuse_other_winner
from curricula.rows.messages import Reading, Turn, is_text, read_turns
from curricula.rows.named_better import find_sides, read_choice, usual_sides
from curricula.rows.pair_columns import Form, PairColumns
from curricula.rows.ranked import LISTS, number_of, read_ranked
from curricula.rows.texts import is_blank, shallow, text_of
from curricula.rows.tools import is_like_a_thought
from engines.types import Message, Tool
from infra.data_files.rows import BadRow, Reason

_SCORED = tuple(
    names
    for word in ("score", "rating", "reward")
    for sign in "_-"
    for names in (
        (f"{word}{sign}chosen", f"{word}{sign}rejected"),
        (f"chosen{sign}{word}", f"rejected{sign}{word}"),
    )
)
"""what a pair's answers are worth, e.g. `score_chosen` and `score_rejected`"""


@dataclass(frozen=True, slots=True)
class Judged:
    """Conversations that begin alike; only what comes after is compared."""

    answers: tuple[Conversation, ...]
    pairs: tuple[tuple[int, int, float], ...]
    """places of a better and of a worse answer, and by how much it is better: as a column says it,
    or else the difference of their scores"""
    is_good: bool | None = None
    """what was said of one answer alone"""
    worth: tuple[float, ...] = ()
    """of each answer, more being better: its score; without scores minus its rank, or 1 and 0"""
    has_scores: bool = False
    has_margin: bool = False
    """whether a column says it of the pair"""

    @property
    def goodness(self) -> tuple[float, ...]:
        """Say how good each answer is, from 0 to 1: of two, one is good and the other bad, whatever
        their scores are."""
        if len(self.answers) == 2 and self.pairs:
            return (1.0, 0.0) if self.pairs[0][0] == 0 else (0.0, 1.0)
        return self.worth

    @property
    def layout(self) -> str:
        return self.answers[0].layout

    @property
    def unread(self) -> frozenset[str]:
        return self.answers[0].unread

    @property
    def names(self) -> list[str]:
        """Return what to call each answer before a person."""
        if self.is_good is not None:
            return ["good" if self.is_good else "bad"]
        if len(self.answers) == 2:
            return ["chosen", "rejected"] if self.pairs[0][0] == 0 else ["rejected", "chosen"]
        return [f"answer {at + 1}" for at in range(len(self.answers))]


@shallow
def read_judged(row: Mapping[str, Any], columns: PairColumns, layout: Layout) -> Judged:
    """Raises BadRow."""
    unread: set[str] = set()
    given = Fields(row, unread)
    if given.get("weight") not in (None, 1):
        raise BadRow(
            Reason.COLUMNS,
            "weight: comparisons count alike; leave the column out, or rows that are not to count",
        )
    form = columns.form or _form_of(given, columns)
    if form == "verdict":
        return _with_label(row, columns, layout)
    if form == "score":
        return _with_score(row, columns, layout)
    inner = _openai_input(given, unread) if given.has("preferred_output") else given
    reading = Reading(layout, read_tools(inner, columns.tools), unread)
    if inner is not given:
        start = Asked(read_turns(inner.get("messages"), "input.messages", reading), "input")
        sides, looks_like = ("preferred_output", "non_preferred_output"), "OpenAI's pairs"
    else:
        sides = (columns.chosen, columns.rejected)
        looks_like = " + ".join(sides)
        start = _start(given, columns, reading)
    has_margin = False
    if form == "list":
        listed = columns.answers or given.first(LISTS)
        if not listed:
            raise lacking("responses", given.names, "; name the list of answers: columns.answers")
        named = (columns.scores, columns.ranks)
        said, pairs, worth, has_scores = read_ranked(given, listed, *named, unread)
        looks_like = f"{listed}, ranked"
    elif form == "choice":
        sides = find_sides(given, columns)
        said = {name: given.column(name) for name in sides}
        pairs, has_margin = read_choice(given, sides, columns)
        worth, has_scores = ((1.0, 0.0) if pairs[0][0] == 0 else (0.0, 1.0)), False
        looks_like = f"{sides[0]} or {sides[1]}"
    else:
        _require_sides(given, sides)
        said = {name: given.column(name) for name in sides}
        scores = _scores_of_pair(given)
        margin, has_margin = _margin(given, columns, scores)
        pairs = ((0, 1, margin),)
        worth, has_scores = scores or (1.0, 0.0), scores is not None
    if start.turns and inner is given:
        looks_like = f"prompt + {looks_like}"
    system = read_system(inner, "")
    turns = [_turns(value, name, reading, start, system) for name, value in said.items()]
    told = [tuple(turn.message for turn in each) for each in turns]
    refuse_unread(given, start.turns, is_auto=not columns.prompt, has_system=False)
    refuse_meaning(given, LEARNED, "", Reason.COLUMNS)
    refuse_other_winner(given)
    of_answers = [n for n in sorted(given.left) if any(side in n for side in sides)]
    advice = "; write an answer with a thought as a message with `reasoning_content`"
    given.refuse([*filter(is_like_a_thought, of_answers)], "", Reason.COLUMNS, advice)
    for each in {given, inner}:
        each.close()
    shared = min(num_shared(told[0], other) for other in told[1:])
    _check([*said], told, shared, reading.tools)
    only_read = frozenset(at for at in range(shared) if told[0][at].role == "assistant")
    made = (
        Conversation(
            messages, tuple(reading.tools), layout=looks_like, unread=frozenset(unread),
            untrained=only_read.union(at for at, turn in enumerate(each) if turn.is_untrained),
        )
        for messages, each in zip(told, turns, strict=True)
    )  # fmt: skip
    return Judged(tuple(made), pairs, None, worth, has_scores, has_margin)


def _form_of(row: Fields, columns: PairColumns) -> Form:
    """Tell what a row is by its columns, where the person named none that says it."""
    if row.holds("preferred_output") or row.holds(columns.rejected):
        return "pair"
    if usual_sides(row):
        return "choice"
    if row.holds(columns.chosen):
        return "pair"
    if row.has("label"):
        return "verdict"
    if row.first(LISTS):
        return "list"
    return "score" if row.has("score") else "pair"


def _margin(
    row: Fields, columns: PairColumns, scores: tuple[float, float] | None
) -> tuple[float, bool]:
    """By how much the chosen answer is better, and whether a column says it. Raises BadRow where
    the row says that it is not better."""
    if scores and scores[0] <= scores[1]:
        names = " and ".join(_scored(row))
        reason = Reason.UNDECIDED if scores[0] == scores[1] else Reason.COLUMNS
        raise BadRow(reason, f"{names}: say that the chosen answer is not the better one")
    name = columns.margin or row.first(("margin",))
    if not name:
        return (scores[0] - scores[1] if scores else 0.0), False
    margin = number_of(row.column(name), name)
    if margin < 0:
        raise BadRow(Reason.COLUMNS, f"{name}: says that the rejected answer is the better one")
    return margin, True


def _scores_of_pair(row: Fields) -> tuple[float, float] | None:
    scores = [number_of(row.get(name), name) for name in _scored(row)]
    return (scores[0], scores[1]) if scores else None


def _scored(row: Fields) -> tuple[str, ...]:
    return next((names for names in _SCORED if all(map(row.has, names))), ())


def _with_label(row: Mapping[str, Any], columns: PairColumns, layout: Layout) -> Judged:
    """One answer, and whether it is a good one. Raises BadRow."""
    name = columns.label or "label"
    given = Fields(row, set())
    said = str(given.column(name)).strip().lower().removesuffix(".0")
    if said not in ("true", "1", "false", "0"):
        raise BadRow(
            Reason.COLUMNS, f"{name}: {said!r:.40} is no verdict; write true for a good answer"
        )
    is_good = said in ("true", "1")
    answer = _alone(row, name, columns, layout)
    return Judged((answer,), (), is_good, (float(is_good),), has_scores=True)


def _with_score(row: Mapping[str, Any], columns: PairColumns, layout: Layout) -> Judged:
    """One answer, and a number that says how good it is. Raises BadRow."""
    name = columns.score or "score"
    score = number_of(Fields(row, set()).column(name), name)
    return Judged((_alone(row, name, columns, layout),), (), None, (score,), has_scores=True)


def _alone(row: Mapping[str, Any], name: str, columns: PairColumns, layout: Layout) -> Conversation:
    """The answer beside which the column `name` stands. Raises BadRow."""
    said = (Meaning.FAILED, Meaning.VERDICT) if columns.form else (Meaning.FAILED,)
    others = {k for k in row if k != name and any(carries(k, meaning) for meaning in said)}
    rest = {key: value for key, value in row.items() if key != name and key not in others}
    named = Columns(prompt=columns.prompt, completion=columns.completion, tools=columns.tools)
    read = read_row(rest, named, layout)
    asked = max(at for at, message in enumerate(read.messages) if message.role == "user")
    before = {at for at in range(asked) if read.messages[at].role == "assistant"}
    return replace(
        read,
        untrained=read.untrained | before,
        layout=f"{read.layout} + {name}",
        unread=read.unread | others,
    )


def _check(
    names: Sequence[str],
    told: Sequence[tuple[Message, ...]],
    shared: int,
    tools: Sequence[Tool],
) -> None:
    """Raises BadRow for what cannot be compared."""
    for at, (name, messages) in enumerate(zip(names, told, strict=True)):
        if fault := fault_of(messages, tools):
            raise BadRow(Reason.MESSAGES, f"{name}: {fault}")
        if is_blank(messages[-1].content) and not messages[-1].tool_calls:
            raise BadRow(Reason.MESSAGES, f"{name}: its last turn says nothing")
        for other in range(at):
            if told[other] == messages:
                raise BadRow(Reason.MESSAGES, f"{names[other]} and {name} are equal")
    for name, messages in zip(names, told, strict=True):
        if len(messages) == shared:
            raise BadRow(Reason.MESSAGES, f"{name}: says no more than the other one")
    if not any(message.role == "user" for message in told[0][:shared]):
        raise BadRow(Reason.MESSAGES, f"{' and '.join(names)} do not begin with the same messages")


def _require_sides(row: Fields, names: tuple[str, str]) -> None:
    """Raises BadRow that names the columns which may be meant."""
    for name, default in zip(names, ("chosen", "rejected"), strict=True):
        likely = next((each for each in row.names if default in each.lower()), "")
        if name == default and likely and not row.holds(name):
            raise lacking(name, row.names, f"; name it, e.g. columns.{name}: {likely}")
    verdict = next((each for each in row.names if carries(each, Meaning.VERDICT)), "")
    if verdict and not any(map(row.holds, names)):
        raise lacking(
            names[0], row.names, f"; if `{verdict}` is a verdict: columns.label: {verdict}"
        )
    if not any(map(row.holds, names)):
        more = (
            "; name which of two is better: columns.first, second and better; or how good one is:"
            " columns.label or score"
        )
        raise lacking(names[0], row.names, more)


def _openai_input(row: Fields, unread: set[str]) -> Fields:
    given = row.column("input")
    if not isinstance(given, Mapping) or "messages" not in given:
        raise BadRow(Reason.COLUMNS, "input: has no messages")
    return Fields(cast("dict[str, Any]", given), unread, "input.")


def _start(row: Fields, columns: PairColumns, reading: Reading) -> Asked:
    name = columns.prompt or row.first(("prompt", *ASKED, *TALKS))
    if not name and not is_text(row.values.get("context")):
        name = row.first(("context",))  # messages (HelpSteer3)
    if not name:
        return Asked([], "")
    return read_asked(row, name, reading, auto=not columns.prompt)


def _turns(value: Any, name: str, reading: Reading, start: Asked, system: str) -> list[Turn]:
    if isinstance(value, Mapping) and ("from" in value or "role" in value):
        value = [value]  # one message (LLaMA-Factory)
    if is_text(value):
        return with_system([*start.turns, *_spoken(text_of(value, name), name, start)], system)
    said = read_turns(value, name, reading)
    leads = [turn for turn in said[:1] if turn.message.role == "system"]
    if leads and start.turns and start.turns[0].message.role != "system":
        follow = what_follows(start.turns, said[1:], name)
        return with_system([*leads, *start.turns, *follow], system)
    return with_system([*start.turns, *what_follows(start.turns, said, name)], system)


def _spoken(text: str, name: str, start: Asked) -> list[Turn]:
    """Return the turns of a text: an answer to what was asked, or a whole conversation. Raises
    BadRow."""
    if start.turns:
        if is_blank(text):
            raise BadRow(Reason.MESSAGES, f"{name}: is empty")
        return [Turn(Message("assistant", text.strip() if start.is_spoken else text))]
    if not (spoken := spoken_turns(text)):
        raise BadRow(
            Reason.MESSAGES, f"{name}: a text without a prompt must begin with '\\n\\nHuman:'"
        )
    return spoken


def num_shared(first: Sequence[Message], second: Sequence[Message]) -> int:
    """Count with how many equal messages both begin."""
    pairs = zip(first, second, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))
