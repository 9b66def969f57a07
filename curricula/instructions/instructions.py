"""The `instructions` curriculum: requests in plain English that must be followed to the letter.

For models that can already write: `general` poses such problems to models that know a few words.
An answer is drawn first, and what is asked for is read off it: every problem can be solved, and no
instruction contradicts another. Judged by `constraints`.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import ClassVar

from curricula.instructions.read_off import read_off
from curricula.instructions.short_answers import SHORT_FORMS
from curricula.instructions.structured_answers import STRUCTURED_FORMS
from curricula.instructions.written_answers import PLAIN_FORMS, TOPICS, Form, Rule
from curricula.procedural import Draft, Family, Procedural
from engines.types import Json, Message

_FORMS: Sequence[Form] = (*PLAIN_FORMS, *STRUCTURED_FORMS, *SHORT_FORMS)


def instructed(fewest: int, most: int) -> Family:
    """`Write a letter to Ann about bees. Greet Ann in the first line, as in a letter. ...`"""

    def draw(rng: random.Random) -> Draft:
        topic = rng.choice(TOPICS)
        answer = rng.choice(_FORMS)(topic, rng)
        wanted = max(rng.randint(fewest, most), len(answer.rules))
        found = read_off(answer.text, rng, is_prose=answer.is_prose)
        rng.shuffle(found)
        rules: dict[str, Rule] = {}
        for rule in (*answer.rules, *found):
            rules.setdefault(str(rule[1]["kind"]), rule)
        chosen = [*rules.values()][:wanted]
        request = f"Write {answer.asked} about {topic}."
        prompt = " ".join((request, *(wording for wording, _ in chosen)))
        constraints: list[Json] = [constraint for _, constraint in chosen]
        plan = (Message("assistant", answer.text),)
        return Draft(answer.form, prompt, prompt, {"constraints": constraints}, plan)

    return draw


class Instructions(Procedural):
    """Levels: easy (one or two instructions), medium (three or four), hard (five to seven)."""

    name: ClassVar[str] = "instructions"
    levels: ClassVar[Mapping[str, Sequence[Family]]] = {
        "easy": (instructed(1, 2),),
        "medium": (instructed(3, 4),),
        "hard": (instructed(5, 7),),
    }

    def __init__(self, *, levels: Sequence[str] = ("easy",)) -> None:
        """Demonstrations have no flaws: one wrong word would often obey as well."""
        super().__init__(levels=levels)
