"""What a row without messages asks, and which of its columns hold the question and the answer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from curricula.rows.fields import Fields
from curricula.rows.meaning import Meaning, refuse_meaning
from curricula.rows.messages import Reading, Turn, is_text, read_turns
from curricula.rows.texts import kind_of, text_of
from engines.types import Message
from infra.data_files.rows import BadRow, Reason

_SPEAKER = re.compile(r"\n\n(Human|Assistant):")
SYSTEM = ("system", "system_prompt", "system_message")
TALKS = ("messages", "conversations", "conversation")
ASKED = ("instruction", "prompt", "question", "problem", "query", "input", "inputs")
_BESIDE = {"instruction": ("input", "context"), "input": (), "inputs": ()}
"""what is asked about, under the question; `context` alone beside the others"""
_ANSWERS = {
    "instruction": ("output", "response", "completion", "answer"),
    "prompt": ("completion", "response", "output", "answer"),
    "question": ("answer", "response", "output", "solution", "completion"),
    "problem": ("solution", "answer", "response", "output"),
    "query": ("response", "answer", "output", "answers"),
    "input": ("output", "response", "target", "completion"),
    "inputs": ("targets", "outputs"),
}
ANSWERS = tuple(dict.fromkeys(name for names in _ANSWERS.values() for name in names))
_KNOWN = {
    ("instruction", "output"): "Alpaca",
    ("instruction", "response"): "Dolly",
    ("prompt", "completion"): "TRL",
}
SUPPORTED = (
    "messages (OpenAI), conversations (ShareGPT), instruction + input -> output (Alpaca),"
    " instruction + context -> response (Dolly), prompt -> completion or response, question ->"
    " answer, problem -> solution, query -> response, input -> output"
)


class Asked(NamedTuple):
    """Holds what comes before the answer."""

    turns: list[Turn]
    columns: str
    """that it is made of, for a person"""
    is_spoken: bool = False
    """whether it is a text of turns (Anthropic), whose white space says nothing"""


def question_and_answer(row: Fields) -> tuple[str, str] | None:
    """The two columns of a row without messages: those that say something, or else those that are
    there."""
    for is_there in (row.has, row.holds):
        for asked in filter(is_there, ASKED):
            if said := next(filter(is_there, _ANSWERS[asked]), ""):
                return asked, said
    return None


def layout_of(asked: Asked, said: str) -> str:
    """Name the layout for a person. Example: `instruction + input -> output (Alpaca)`."""
    name = _KNOWN.get((asked.columns.partition(" ")[0], said))
    return f"{asked.columns} -> {said}" + (f" ({name})" if name else "")


def read_asked(row: Fields, name: str, reading: Reading, *, auto: bool) -> Asked:
    """Return what a column asks; if `auto`, with what stands beside it in a layout that is known.
    Raises BadRow."""
    value: Any = row.column(name)
    before = _history(row) if auto else []
    if auto:
        _refuse_choices(row, name)
    if is_text(value) and (spoken := spoken_turns(value)) and spoken[-1].message.content == "":
        return Asked([*before, *spoken[:-1]], f"{name} (Human, Assistant)", is_spoken=True)
    if is_text(value):
        beside = row.first(_BESIDE.get(name, ("context",))) if auto else ""
        text = text_of(value, name)
        if beside:
            text = f"{text}\n{_text(row.get(beside), beside)}"
        if not text.strip():
            raise BadRow(Reason.MESSAGES, f"{name}: is empty; the user says nothing")
        asked = [*before, Turn(Message("user", text))]
        return Asked(asked, f"{name} + {beside}" if beside else name)
    if not isinstance(value, str | list | dict):
        fault = "is empty" if value is None else "is no list of messages and no text"
        raise BadRow(Reason.COLUMNS, f"{name}: {fault}")
    return Asked([*before, *read_turns(cast("Any", value), name, reading)], name)


def spoken_turns(text: str) -> list[Turn]:
    """The turns of a text `\\n\\nHuman: ...\\n\\nAssistant: ...` (Anthropic); none of another text.
    The last one is empty where it is to be written."""
    before, *parts = _SPEAKER.split(text)
    if before.strip() or len(parts) < 4:
        return []
    said = zip(parts[0::2], parts[1::2], strict=True)
    return [Turn(Message("user" if w == "Human" else "assistant", t.strip())) for w, t in said]


def _refuse_choices(row: Fields, name: str) -> None:
    """Raises BadRow where the answers to choose from have columns of their own, be it A, B, C."""
    advice = (
        f"write them into the text of {name}, or name the column of the prompt, which then stands"
        " alone"
    )
    refuse_meaning(row, [Meaning.CHOICES], "", Reason.COLUMNS, advice)
    letters = sorted(each for each in row.left if each.upper() in ("A", "B"))
    if len(letters) == 2:
        raise BadRow(Reason.COLUMNS, f"has `{letters[0]}`, which is not read; {advice}")


def refuse_other_questions(row: Fields, messages: Sequence[Message]) -> None:
    """Raises BadRow for a second question, unless it repeats what is read, or is a rendering of
    all of it."""
    for name in filter(row.left.__contains__, ASKED):
        texts = [text for text in _texts_in(row.values.get(name)) if text]
        repeats = all(any(_holds(m.content, text) for m in messages) for text in texts)
        said = [line for m in messages for line in m.content.split("\n") if m.role != "system"]
        if repeats or all(_holds("\n".join(texts), line.strip()) for line in said):
            continue
        raise BadRow(
            Reason.COLUMNS,
            f"has `{name}`, which is not read, beside another question; name what is asked in"
            " columns (columns.prompt takes `a+b`), or leave it out",
        )


def _holds(text: str, part: str) -> bool:
    """Return whether a part stands in a text, and not within a word of it, as `Hi` does in
    `History`.
    """
    return not part or re.search(rf"(?<!\w){re.escape(part)}(?!\w)", text) is not None


def refuse_other_answers(row: Fields, said: str, value: Any) -> None:
    """Raises BadRow for a second answer that says more than the one that is read."""
    for name in filter(row.left.__contains__, ANSWERS):
        other = row.values.get(name)
        if isinstance(other, str) and len(other) > len(str(value)):
            raise BadRow(
                Reason.COLUMNS,
                f"has `{name}`, which is not read and says more than `{said}`; name the answer in"
                " columns.completion",
            )


def _texts_in(value: Any) -> list[str]:
    """Return a text, or what messages say."""
    if isinstance(value, str):
        return [value.strip()]
    messages = cast("list[Any]", value) if isinstance(value, list) else []
    texts = [cast("dict[str, Any]", m).get("content") for m in messages if isinstance(m, dict)]
    return [text.strip() for text in texts if isinstance(text, str)]


def _history(row: Fields) -> list[Turn]:
    """Earlier questions and answers, in pairs (Alpaca)."""
    given: Any = row.get("history") or []
    turns: list[Turn] = []
    for at, pair in enumerate(cast("list[Any]", given) if isinstance(given, list) else [given]):
        where = f"history[{at}]"
        both = cast("list[Any]", pair) if isinstance(pair, list) else []
        if len(both) != 2 or not all(isinstance(each, str) for each in both):
            raise BadRow(Reason.COLUMNS, f"{where}: is no pair of a question and an answer")
        turns.append(Turn(Message("user", text_of(both[0], where))))
        turns.append(Turn(Message("assistant", text_of(both[1], where))))
    return turns


def what_follows(start: Sequence[Turn], turns: list[Turn], name: str) -> list[Turn]:
    """Turns that go on from others, without those in front, which some files repeat. Raises BadRow
    where a question follows a question: then the two are the same, written in two ways."""
    begun = [turn.message for turn in start]
    if begun and [turn.message for turn in turns[: len(begun)]] == begun:
        return turns[len(begun) :]
    if begun and begun[-1].role == turns[0].message.role == "user":
        raise BadRow(
            Reason.MESSAGES,
            f"{name}: begins with another question than the prompt; leave it out, or make it equal",
        )
    return turns


def read_said(value: Any, name: str) -> str:
    """Return an answer's text; a whole number is one. Raises BadRow."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return str(value) if is_whole else _text(value, name)


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise BadRow(Reason.COLUMNS, f"{name}: is no text but {kind_of(value)}")
    return text_of(value, name)


def read_system(row: Fields, name: str) -> str:
    """The text of a system message that stands in a column of its own. Raises BadRow."""
    value = row.column(name) if name else row.same(SYSTEM)
    return text_of(value, name or "system")


def with_system(turns: list[Turn], text: str) -> list[Turn]:
    """Turns that begin with it. Raises BadRow where they begin with another one."""
    if not text:
        return turns
    first = turns[0].message
    if first.role != "system":
        return [Turn(Message("system", text)), *turns]
    if first.content != text:
        raise BadRow(
            Reason.MESSAGES, "has a system column that differs from its first message; keep one"
        )
    return turns
