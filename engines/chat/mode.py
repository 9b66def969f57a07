"""Whether a model thinks before it answers: what its chat template allows, and what was asked for.

This is the only place that decides it. Prompts, loss masks, rewards, servers and exported models
all follow `Mode.decide`. What was asked for is True, False, or None where nobody said anything.

| the template            | True            | False                  | None                     |
|-------------------------|-----------------|------------------------|--------------------------|
| has a switch            | thinks          | does not               | does not                 |
| always opens a thought  | thinks          | refused                | thinks                   |
| leaves it to the model, | a thought must  | a thought must not     | the model may think      |
| in tags or a channel    | come            | come                   |                          |
| writes thoughts without | refused         | does not               | does not                 |
| think tags              |                 |                        |                          |
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum

from engines.chat.template import SWITCHES, ChatTemplate
from engines.types import Demonstration, Message, Problem
from infra.errors import InputError

OPEN_THOUGHT = re.compile(r"\s*<think>\s*\Z")
"""at the end of a header: the model's turn begins inside its thought"""
STAND_IN = "so"
"""a thought where one must stand and none is known"""
_USER = Message("user", "u")
_TAG = "think>"
"""in the text of every template that knows `<think>` and `</think>`"""


class Thoughts(StrEnum):
    """Says what a chat template does about thoughts."""

    SWITCHED = "switched"
    """it has a variable that turns them on and off"""
    ALWAYS = "always"
    """it opens one in the header of every turn"""
    FREE = "free"
    """it has no switch, but knows think tags: the model opens its thoughts itself"""
    CHANNEL = "channel"
    """it has no switch, but a channel for thoughts (harmony), which the model opens itself"""
    NONE = "none"
    """it knows nothing of thoughts; a model may still write think tags"""
    FOREIGN = "foreign"
    """it has a switch, but its thoughts stand between marks that are not read"""


@dataclass(frozen=True, slots=True)
class Mode:
    """The decision for one template."""

    template: str
    """name of its file"""
    thoughts: Thoughts
    switch: str = ""
    """the variable that turns thoughts on and off; empty where there is none"""
    default: bool = False
    """whether the template thinks when the variable is not given"""

    def decide(self, asked: bool | None) -> bool | None:
        """Return whether there is a thought; None where the model may think or not. Raises
        InputError for what the template cannot do."""
        match self.thoughts:
            case Thoughts.SWITCHED:
                return bool(asked)
            case Thoughts.ALWAYS if asked is False:
                raise InputError(
                    f"`thinking: false` is not possible: {self.template} opens a thought in every"
                    " turn; leave `thinking` out or set it to true"
                )
            case Thoughts.ALWAYS:
                return True
            case Thoughts.FOREIGN if asked:
                raise InputError(
                    f"`thinking: true` is not possible: {self.template} writes thoughts in a form"
                    " other than <think>...</think>; set `thinking` to false"
                )
            case Thoughts.FOREIGN:
                return False
            case _:
                return asked

    def decided(self, problem: Problem) -> Problem:
        """The problem with `thinking` as it is decided. Raises InputError."""
        try:
            thinking = self.decide(problem.thinking)
        except InputError as error:
            raise InputError(f"problem {problem.id}: {error}") from None
        return problem if thinking is problem.thinking else replace(problem, thinking=thinking)

    def decided_demonstration(self, shown: Demonstration) -> Demonstration:
        """The demonstration with its problem decided. Where thoughts are the template's own choice
        and none is shown, a word stands in for one before the last answer, so that training sees
        the header that the model will be asked with. Raises InputError."""
        problem, turns = self.decided(shown.problem), shown.turns
        is_own_choice = problem.thinking and shown.problem.thinking is None
        if is_own_choice and turns and not any(turn.reasoning for turn in turns):
            turns = (*turns[:-1], replace(turns[-1], reasoning=STAND_IN))
        return Demonstration(problem, turns)

    def describe(self, asked: bool | None) -> str:
        """The decision in words. Raises InputError."""
        said = {True: "on", False: "off", None: "left to the model"}[self.decide(asked)]
        who = "by the template" if asked is None else "as asked for"
        return f"thinking is {said} {who} ({self.template} {_ABLE[self.thoughts]})"

    def caution(self, asked: bool | None) -> str:
        """Return what may not work about a choice that is possible; empty if nothing."""
        if asked and self.thoughts is Thoughts.NONE:
            return (
                f"`thinking: true`, but {self.template} knows no thoughts: answers count only from"
                " a model that writes <think>...</think> by itself, e.g. because its prompts ask"
                " for it"
            )
        if asked is False and self.thoughts in FREELY:
            return (
                f"`thinking: false`, but {self.template} cannot turn thoughts off: an answer with"
                " a thought counts as wrong; leave `thinking` out to accept both"
            )
        return ""


FREELY = (Thoughts.FREE, Thoughts.CHANNEL)
"""the model opens its thoughts itself"""
_ABLE = {
    Thoughts.SWITCHED: "can turn it on and off",
    Thoughts.ALWAYS: "always opens a thought",
    Thoughts.FREE: "has no switch",
    Thoughts.CHANNEL: "has a channel for it, and no switch",
    Thoughts.NONE: "knows no thoughts",
    Thoughts.FOREIGN: "writes thoughts without think tags",
}


def mode_of(template: ChatTemplate) -> Mode:
    """Found by rendering one question with each variable on, off and not given. Raises
    InputError."""
    silent = template.render([_USER], thinking=None, open_turn=True)
    for switch in SWITCHES:
        on, off = (
            template.render([_USER], thinking=thinking, open_turn=True, switches=(switch,))
            for thinking in (True, False)
        )
        if on != off:
            thoughts = Thoughts.SWITCHED if _TAG in template.text else Thoughts.FOREIGN
            is_on = silent == on or (silent != off and _opens(silent))
            return Mode(template.name, thoughts, switch, is_on)
    if _opens(silent):
        return Mode(template.name, Thoughts.ALWAYS, default=True)
    if _has_channel(template):
        return Mode(template.name, Thoughts.CHANNEL)
    thoughts = Thoughts.FREE if _TAG in template.text else Thoughts.NONE
    return Mode(template.name, thoughts)


def _has_channel(template: ChatTemplate) -> bool:
    if "<|channel|>" not in template.text:
        return False
    try:
        written = template.render([_USER, Message("assistant", "C", "R")])
    except InputError:
        return False
    return "<|channel|>analysis<|message|>R<|end|>" in written


def _opens(header: str) -> bool:
    return OPEN_THOUGHT.search(header) is not None
