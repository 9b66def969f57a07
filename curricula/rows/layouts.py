"""A row of any layout as a conversation to learn from, and which layout a row that has none comes
closest to.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

from curricula.rows.asked import (
    ANSWERS,
    ASKED,
    SUPPORTED,
    TALKS,
    layout_of,
    question_and_answer,
    read_asked,
    read_said,
    read_system,
    refuse_other_answers,
    refuse_other_questions,
    what_follows,
    with_system,
)
from curricula.rows.conversation import Columns, Conversation, Layout, fault_of
from curricula.rows.fields import Fields, lacking
from curricula.rows.meaning import (
    LEARNED,
    SEEN,
    Meaning,
    carries,
    refuse_cut,
    refuse_failed,
    refuse_meaning,
    words_of,
)
from curricula.rows.messages import (
    Reading,
    Turn,
    is_text,
    read_talk,
    read_turns,
)
from curricula.rows.texts import are_tokens, is_blank, shallow, text_of
from curricula.rows.tools import (
    THOUGHTS,
    are_calls,
    calls_of,
    read_switches,
    refuse_other_thoughts,
    require_as_switched,
    tools_of,
)
from engines.types import Message, Tool
from infra.data_files.rows import BadRow, Reason

PROMPTS_READ = (
    "prompt, question, problem, query, instruction (+ input or context), input, or messages"
    " (OpenAI, ShareGPT, verl), with the reference in reference, answer, ground_truth, target,"
    " label (slime), expected_answer, final_answer or reward_model.ground_truth (verl)"
)

_OF_TOKENS = {"id", "ids", "token", "label"}
_VERDICTS = (
    "true", "false", "0", "1", "-1", "good", "bad", "yes", "no", "right", "wrong", "correct",
    "incorrect", "chosen", "rejected", "accepted", "preferred", "desirable", "undesirable",
)  # fmt: skip


def nearest_layout(values: Mapping[str, Any]) -> str:
    """Return a sentence on what to do, with a `; ` before it; empty where nothing is close."""
    names = set(values)
    if {"chosen", "rejected"} <= names:
        return (
            "; it is a preference pair, which `preview --kind pairs` shows, and the stages"
            " `preference` and `reward` learn from: to learn its good answer alone, name that in"
            " columns.completion"
        )
    if said := _no_row(values):
        return said
    if talk := _talk_in(values):
        return f"; `{talk}` looks like messages: name it in columns.messages"
    asked = next((name for name in ASKED if name in names), "")
    said = next((name for name in ANSWERS if name in names), "")
    if asked and not said:
        likely = _likely_answer(values)
        more = f", e.g. `columns.completion: {likely}`" if likely else ""
        return f"; the nearest is {asked} -> answer: name the answer in columns.completion{more}"
    if said and not asked:
        return f"; the nearest is question -> {said}: name the question in columns.prompt"
    if asked and said:
        return f"; name both, as `columns.prompt: {asked}` and `columns.completion: {said}`"
    if "text" in names:
        return (
            "; raw text is what `mid_training` learns from (`preview --kind documents`); here the"
            " nearest is prompt -> completion, which says what is only read"
        )
    for name in names:
        if close := difflib.get_close_matches(str(name), [*TALKS, *ASKED, *ANSWERS], 1):
            return f"; `{name}` is close to `{close[0]}`: name it in columns"
    return "; name the columns in columns.prompt and columns.completion"


def answer_beside(talk: str, unread: Collection[str]) -> str:
    """Says, in the same way, where the answer may stand to messages that end with a question."""
    pair = "chosen" if {"chosen", "rejected"} <= set(unread) else ""
    said = pair or next((name for name in ANSWERS if name in unread), "")
    if not said:
        return ""
    return (
        f"; `{said}` is not read beside messages: if it is the answer, name `prompt: {talk}` and"
        f" `completion: {said}` in columns"
    )


def nearest_prompt(values: Mapping[str, Any]) -> str:
    """Says what to do with a row that asks nothing, in the same way."""
    if said := _no_row(values):
        return said
    if talk := _talk_in(values):
        return f"; `{talk}` looks like messages: name it in columns.prompt"
    for name in values:
        if close := difflib.get_close_matches(str(name), [*ASKED, *TALKS], 1):
            return f"; `{name}` is close to `{close[0]}`: name it in columns.prompt"
    return "; name the column in columns.prompt, or two as `a+b`"


def _likely_answer(values: Mapping[str, Any]) -> str:
    """The column with the longest text of those whose name has a word for an answer."""
    names = [
        name
        for name, value in values.items()
        if isinstance(value, str) and not {*words_of(name)}.isdisjoint(ANSWERS)
    ]
    return max(names, key=lambda name: len(values[name]), default="")


def _no_row(values: Mapping[str, Any]) -> str:
    """Says that this is no row but a message, ids of tokens, or many rows, as `{"data": [...]}`
    is."""
    if values.keys() & {"role", "from"} and values.keys() & {"content", "value"}:
        return (
            "; it is one message, and a row is a whole conversation: write its messages as a list"
            " in `messages`"
        )
    ids = [n for n, v in values.items() if are_tokens(v) and {*words_of(n)} & _OF_TOKENS]
    if tokens := next(iter(ids), ""):
        return (
            f"; `{tokens}` holds ids of tokens, which are not read: give the texts or messages"
            " that they were made of"
        )
    held = [name for name, value in values.items() if _is_rows(value)]
    if not held or any(isinstance(values[name], str) and name in ASKED for name in values):
        return ""
    names = " and ".join(f"`{name}`" for name in held)
    return f"; it is no row, but holds rows in {names}: write each such list into a file of its own"


def _is_rows(value: Any) -> bool:
    if not isinstance(value, list) or not value or _is_talk(value):
        return False
    return all(isinstance(each, dict) for each in cast("list[Any]", value))


def _talk_in(values: Mapping[str, Any]) -> str:
    """The column that looks like messages, or the field of a column of objects; empty for none."""
    for name, value in values.items():
        if _is_talk(value):
            return name
        inner = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
        if field := next((each for each in inner if _is_talk(inner[each])), ""):
            return f"{name}.{field}"
    return ""


def _is_talk(value: Any) -> bool:
    if not isinstance(value, list) or not value or not isinstance(value[0], dict):
        return False
    first = cast("dict[str, Any]", value[0])
    return bool(first.keys() & {"role", "from"})


@shallow
def read_row(row: Mapping[str, Any], columns: Columns, layout: Layout) -> Conversation:
    """Raises BadRow."""
    unread: set[str] = set()
    given = Fields(row, unread)
    tools = read_tools(given, columns.tools)
    turns, looks_like = _turns(given, columns, Reading(layout, tools, unread, is_learned=True))
    weight = 1.0
    if not given.is_read or columns.system or columns.weight:
        turns = with_system(turns, read_system(given, columns.system))
        weight = _weight(given, columns)
        _refuse_labels(given)
        refuse_failed(given, "", Reason.COLUMNS)
        refuse_cut(given, "", Reason.COLUMNS)
        is_auto = not (columns.messages or columns.prompt)
        refuse_unread(given, turns, is_auto=is_auto, has_system=bool(columns.system))
        refuse_meaning(given, LEARNED, "", Reason.COLUMNS)
        given.close()
    messages = tuple(turn.message for turn in turns)
    if fault := fault_of(messages, tools):
        is_asked_last = messages[-1].role == "user"
        more = answer_beside(looks_like.partition(" ")[0], unread) if is_asked_last else ""
        raise BadRow(Reason.MESSAGES, fault + more)
    untrained = frozenset([at for at, turn in enumerate(turns) if turn.is_untrained])
    return Conversation(messages, tools, weight, untrained, looks_like, frozenset(unread))


def refuse_unread(row: Fields, turns: Sequence[Turn], *, is_auto: bool, has_system: bool) -> None:
    """Raises BadRow for a column that a model would see or call, and that nothing here reads.
    `is_auto`: nobody named the columns of what is said, so that others may belong to it."""
    has_tools = row.has("tools") or "tools" not in row.read  # or another column is named
    seen = [each for each in SEEN if each is not Meaning.TOOLS or not has_tools]
    refuse_meaning(row, seen, "", Reason.COLUMNS)
    if is_auto:
        refuse_other_questions(row, [turn.message for turn in turns])
        refuse_meaning(
            row,
            [Meaning.CONTEXT],
            "",
            Reason.COLUMNS,
            "if the model should see it, write it into what is asked (columns.prompt takes `a+b`);"
            " or name the columns that are read, and it may stay",
        )
    if not has_system:
        refuse_meaning(row, [Meaning.SYSTEM], "", Reason.COLUMNS)


def read_tools(row: Fields, name: str) -> tuple[Tool, ...]:
    """Reads the column of this name, or `tools`. Raises BadRow."""
    value = row.column(name) if name else row.get("tools")
    return () if value is None else tools_of(value)


def _turns(row: Fields, columns: Columns, reading: Reading) -> tuple[list[Turn], str]:
    """The turns, and what the row looks like."""
    if columns.prompt or columns.completion:
        if columns.messages:
            raise BadRow(Reason.COLUMNS, "name messages, or prompt and completion, and not both")
        return _asked_and_said(row, columns, reading)
    talk = columns.messages or row.first(TALKS)
    if not talk and question_and_answer(row) is not None:
        return _asked_and_said(row, columns, reading)
    if not talk and not any(map(row.holds, TALKS)):
        more = f". Layouts that are read: {SUPPORTED}{nearest_layout(row.values)}"
        raise lacking("messages", row.names, more)
    talk = talk or next(filter(row.holds, TALKS))
    turns, is_sharegpt = read_talk(row.column(talk), talk, reading)
    if not row.is_read:
        if not columns.messages:
            _check_same(row, talk, turns, reading)
        require_as_switched(read_switches(row), [turn.message for turn in turns])
        row.refuse(THOUGHTS, "", Reason.COLUMNS)
        if not columns.messages:
            refuse_other_thoughts(row, "", Reason.COLUMNS, "name columns.messages")
    return turns, f"{talk} ({'ShareGPT' if is_sharegpt else 'OpenAI'})"


def _check_same(row: Fields, talk: str, turns: list[Turn], reading: Reading) -> None:
    """Raises BadRow for a row with two conversations that differ."""
    for other in TALKS:
        if other == talk or not row.has(other):
            continue
        said = [
            turn.message
            for turn in read_turns(row.get(other), other, reading._replace(unread=set()))
        ]
        if said != [turn.message for turn in turns]:
            raise BadRow(
                Reason.COLUMNS,
                f"has {talk} and {other}, which differ; name one in columns.messages",
            )


def _asked_and_said(row: Fields, columns: Columns, reading: Reading) -> tuple[list[Turn], str]:
    """Reads a row that holds its question and its answer in two columns."""
    found = question_and_answer(row) or (
        row.first(ASKED) or "prompt",
        row.first(ANSWERS) or "completion",
    )
    name, said = columns.prompt or found[0], columns.completion or found[1]
    asked = read_asked(row, name, reading, auto=not columns.prompt)
    value: Any = row.column(said)
    start = [turn._replace(is_untrained=turn.message.role == "assistant") for turn in asked.turns]
    switches = read_switches(row)
    if are_calls(value, reading.tools):
        calls = tuple(each.call for each in calls_of(value, said, reading.unread))
        turns = [Turn(Message("assistant", "", _thought(row, switches), calls))]
    elif not is_text(value) and isinstance(value, str | list | dict):
        turns = read_turns(cast("Any", value), said, reading)
        turns = what_follows(start, turns, said)
        row.refuse(THOUGHTS, "", Reason.COLUMNS)
    else:
        turns = [Turn(Message("assistant", read_said(value, said), _thought(row, switches)))]
        text = turns[0].message.content
        if is_blank(text) or (reading.tools and text.strip() == "[]"):
            raise BadRow(Reason.MESSAGES, f"{said}: is empty; the assistant says nothing")
    require_as_switched(switches, [turn.message for turn in turns])
    if not columns.completion:
        out = "name columns.prompt and columns.completion"
        refuse_other_thoughts(row, "", Reason.COLUMNS, out)
        refuse_other_answers(row, said, value)
    return [*start, *turns], layout_of(asked, said)


def _refuse_labels(row: Fields) -> None:
    """Raises BadRow for a row that says whether its answer is a good one (KTO), or which of its
    tokens are not to be learned (transformers)."""
    for name in sorted(row.left):
        given: Any = row.values.get(name)
        if are_tokens(given) and -100 in given:
            raise BadRow(
                Reason.COLUMNS,
                f"has `{name}`, ids of tokens of which those with -100 are not to be learned, and"
                " which are not read; leave the column out, and mark messages with `weight: 0`",
            )
        value = str(given).strip().lower().removesuffix(".0")
        if carries(name, Meaning.VERDICT) and value in _VERDICTS:
            raise BadRow(
                Reason.COLUMNS,
                f"has `{name}`, which says whether the answer is a good one, and is not read;"
                f" {Meaning.VERDICT.value.advice}",
            )


def _thought(row: Fields, switches: Mapping[str, bool]) -> str | None:
    """Reads the assistant's thought before an answer that is a text."""
    value: Any = row.same([name for name in THOUGHTS if name not in switches])
    return text_of(value, "the thought") or None


def _weight(row: Fields, columns: Columns) -> float:
    name = columns.weight or "weight"
    value: Any = row.column(name) if columns.weight else row.get(name)
    if value is None and not columns.weight:
        return 1.0
    value = _number(value) if isinstance(value, str) else value  # a cell of CSV
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf:
        return float(value)
    raise BadRow(Reason.COLUMNS, f"{name}: {value!r:.40} is no weight, from 0")


def _number(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text
