"""Names of columns and fields that carry meaning: what stands under one of them and is not read
changes what a model sees or learns."""

from __future__ import annotations

import re
from collections.abc import Collection
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple

from curricula.rows.fields import Fields
from infra.data_files.rows import BadRow, Reason

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_STATED = ("eos", "eot", "eom", "end", "endofturn", "endofsequence")
"""words under which true is what happens anyway; under the others it is false"""


class _Names(NamedTuple):
    """A name has one of the words, in any case and number, and beside it nothing but words and
    numbers that qualify it: `trainable_tokens`, but not `training_source`."""

    words: frozenset[str]
    beside: frozenset[str]
    advice: str
    num_least: int = 1
    """words that such a name has at least"""


def _names(words: str, beside: str, advice: str, num_least: int = 1) -> _Names:
    return _Names(frozenset(words.split()), frozenset(beside.split()), advice, num_least)


class Meaning(Enum):
    """A column can say one of these things."""

    MEDIA = _names(
        "image img picture photo video audio speech pixel media attachment",
        "path url uri file src data bytes base64 b64 input content list value user prompt first"
        " second in",
        "models are trained on text",
    )
    LOSS = _names(
        "loss mask masked train trained training trainable weight ignore ignored learn learned"
        " supervise supervised skip exclude excluded frozen backprop",
        "no not is do dont on off use should with without turn token step row sample example for"
        " completion response answer assistant reply prompt input output message history detail"
        " scale factor value per user importance class the this from role to last first only all"
        " multiplier coefficient coef ratio eos content",
        "a turn is only read where `weight` or `train` of its message is 0, and a row counts by its"
        " column `weight`",
    )
    END = _names(
        "eos eot eom endofturn endofsequence end prefix prefill partial continue",
        "no skip add append is has with of turn text token message sequence the final last",
        "the end of each turn is trained on",
    )
    SWITCH = _names(
        "think thinking thought reasoning cot template",
        "enable enabled disable disabled use no effort budget mode level on off switch with without"
        " allow chat kwarg arg param variable option",
        "a row with a thought is rendered with thinking on, one without with thinking off",
        2,
    )
    TOOLS = _names(
        "tool function api",
        "available list schema definition spec json declaration description provided builtin given"
        " openai",
        "if it holds tools, name it in columns.tools",
    )
    SYSTEM = _names(
        "system sys instructions developer preamble",
        "prompt message text content role custom instruction",
        "if it is a system message, name it in columns.system; if not, leave it out",
    )
    CONTEXT = _names(
        "document doc passage context ctx evidence knowledge background article paragraph excerpt"
        " snippet story history starter",
        "chat conversation dialog dialogue message past previous turn text retrieved input"
        " supporting content relevant list search gold given user prompt"
        " question result full code",
        "write it into the text of a message",
    )
    CHOICES = _names(
        "choice option ending distractor opa opb opc opd",
        "answer candidate multiple list text all possible wrong incorrect a b c d e f g h i j",
        "write them into the question",
    )
    VERDICT = _names(
        "label kto desirable good correct accepted preferred",
        "is was tag answer response completion output reply",
        "keep the good ones, and leave the column out",
    )
    FAILED = _names(
        "passed success successful succeeded resolved solved verified chosen failed wrong rejected"
        " valid invalid correctness keep kept deleted discarded removed",
        "is was has all test answer response completion output reply task run trajectory",
        "keep the good ones, and leave the column out",
    )
    CUT = _names(
        "finish finished stop stopped truncated incomplete",
        "reason is was by type status output answer response completion reply generation",
        "a model would learn to end there; leave such rows out",
    )


SEEN = (Meaning.MEDIA, Meaning.SWITCH, Meaning.TOOLS)
"""meanings that change what a model is asked"""
LEARNED = (Meaning.LOSS, Meaning.END)
"""meanings that change what it learns of that"""


@lru_cache(4096)
def words_of(name: str) -> tuple[str, ...]:
    """Words of a name in lower case and in the singular. Example: `loss`, `mask` of lossMasks."""
    return tuple(_singular(word.lower()) for word in _WORD.findall(name))


def _singular(word: str) -> str:
    is_plural = len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "instructions"))
    return word[:-1] if is_plural else word


@lru_cache(4096)
def carries(name: str, meaning: Meaning) -> bool:
    """Return whether a column of this name has that meaning."""
    words, known = frozenset(words_of(name)), meaning.value
    if len(words) < known.num_least or words.isdisjoint(known.words):
        return False
    return words <= known.words | known.beside


def refuse_meaning(
    row: Fields, meanings: Collection[Meaning], where: str, reason: Reason, advice: str = ""
) -> None:
    """Raises BadRow if something stands under a name of one of these meanings that was not
    read."""
    for name in sorted(row.left):
        for meaning in meanings:
            if carries(name, meaning) and _says(row.values.get(name), name, meaning):
                at = f"{where}: " if where else ""
                more = advice or meaning.value.advice
                raise BadRow(reason, f"{at}has `{name}`, which is not read; {more}")


_CUT_REASONS = ("length", "max_length", "max_tokens", "max_output_tokens", "content_filter")
"""with which servers say that an answer is not whole"""


def refuse_cut(row: Fields, where: str, reason: Reason) -> None:
    """Raises BadRow for an answer of which an unread field says that it was cut off."""
    for name in sorted(row.left):
        value = str(row.values.get(name)).strip().lower()
        if not carries(name, Meaning.CUT) and (name, value) != ("status", "incomplete"):
            continue
        is_flag = not {"truncated", "incomplete"}.isdisjoint(words_of(name))
        if value in (*_CUT_REASONS, "incomplete") or (
            is_flag and value in ("true", "1", "1.0", "yes")
        ):
            at = f"{where}: " if where else ""
            raise BadRow(
                reason,
                f"{at}has `{name}` {value}, so its answer was cut off; {Meaning.CUT.value.advice}",
            )


_FALSE = ("false", "0", "no", "wrong", "incorrect", "bad", "undesirable", "rejected")
_TRUE = ("true", "1", "yes")
_OF_BAD_ONES = {"failed", "wrong", "rejected", "invalid", "deleted", "discarded", "removed"}


def refuse_failed(row: Fields, where: str, reason: Reason) -> None:
    """Raises BadRow for an answer of which an unread field says that it is a bad one."""
    for name in sorted(row.left):
        if not (carries(name, Meaning.FAILED) or carries(name, Meaning.VERDICT)):
            continue
        bad = _FALSE if _OF_BAD_ONES.isdisjoint(words_of(name)) else _TRUE
        value = str(row.values.get(name)).strip().lower().removesuffix(".0")
        if value in bad:
            at = f"{where}: " if where else ""
            raise BadRow(
                reason,
                f"{at}has `{name}` {value}, so its answer is not a good one;"
                f" {Meaning.FAILED.value.advice}",
            )


_WINNERS = ("winner", "preference", "preferred", "better", "tie", "is_tie", "status")
TIES = ("tie", "tied", "both", "neither", "none", "draw", "equal", "same")
"""words that prefer no answer"""
_NOT_CHOSEN = ("rejected", "true", *TIES)


def refuse_other_winner(row: Fields) -> None:
    """Raises BadRow for a pair of which an unread field says that it is a tie, or turned round."""
    for name in sorted(row.left.intersection(_WINNERS)):
        value = str(row.values.get(name)).strip().lower()
        if value in _NOT_CHOSEN:
            is_tie = value in TIES or "tie" in words_of(name)
            raise BadRow(
                Reason.UNDECIDED if is_tie else Reason.COLUMNS,
                f"has `{name}` {value}, so the chosen answer is not the better one; leave such rows"
                " out",
            )


def _says(value: Any, name: str, meaning: Meaning) -> bool:
    """Return whether a value can have this meaning; None is one that is no JSON, as bytes are
    not."""
    is_number = isinstance(value, bool | int | float)
    match meaning:
        case Meaning.SWITCH:
            return True
        case Meaning.LOSS:
            return name != "weight"  # unread where another column is named for it
        case Meaning.END:
            words = words_of(name)
            usual = not set(words).isdisjoint(_STATED)
            usual ^= not set(words).isdisjoint(("no", "skip"))
            return value is not usual and not (words == ("end",) and not isinstance(value, bool))
        case Meaning.TOOLS:
            return not is_number and (
                not isinstance(value, str) or value.lstrip().startswith(("[", "{"))
            )
        case _:
            return not is_number
