"""Which layout a row that has none comes closest to."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import Any, cast

from curricula.rows.asked import ANSWERS, ASKED, TALKS
from curricula.rows.meaning import words_of
from curricula.rows.texts import are_tokens

PROMPTS_READ = (
    "prompt, question, problem, query, instruction (+ input or context), input, or messages"
    " (OpenAI, ShareGPT, verl), with the reference in reference, answer, ground_truth, target,"
    " label (slime), expected_answer, final_answer or reward_model.ground_truth (verl)"
)

_OF_TOKENS = {"id", "ids", "token", "label"}


def nearest_layout(values: Mapping[str, Any]) -> str:
    """A sentence on what to do, with a `; ` before it; empty where nothing is close."""
    names = set(values)
    if {"chosen", "rejected"} <= names:
        return (
            "; it is a preference pair, which `preview --kind pairs` shows and no stage trains on:"
            " name the column of its good answer in columns.completion"
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
            "; raw text is not trained on: the nearest is prompt -> completion, which says what is"
            " only read"
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
