"""Problems of a generated API: a whole dialogue, or the one call that comes next in it."""

from __future__ import annotations

import random
from dataclasses import astuple, replace
from functools import partial
from typing import Any

from curricula.functions.apis import draw_api, policies, tools_of
from curricula.procedural import Draft
from curricula.vocabulary import NAMES
from engines.types import Message, ToolCall
from infra.back_ends.back_end import BackEnd, solved
from infra.back_ends.calls import Call
from infra.back_ends.task import Task, task_of

THINGS = 3
MOST_AMOUNT = 20
ANSWER = "done"


def draw_task(rng: random.Random) -> Task:
    """Half of the changes come too late, and half of the deletions are not agreed to."""
    api = draw_api(rng)
    free = [name for name in NAMES if name not in (api.noun, api.field)]
    user, *names = rng.sample(free, THINGS + 1)
    target, is_late = names[0], rng.random() < 0.5
    ages = {name: rng.randint(0, 2 * api.most_days) for name in sorted(names)}
    low, high = (1, api.most_days) if is_late else (-api.most_days, 0)
    ages[target] = api.most_days + rng.randint(low, high)
    return Task(
        api=api,
        user=user,
        target=target,
        goal=rng.choice(("change", "delete")),
        ages=ages,
        amount=rng.randint(1, MOST_AMOUNT),
        agrees=rng.random() < 0.5,
    )


def dialogue(rng: random.Random) -> Draft:
    """Solved by bringing the back end into the wanted state."""
    task = draw_task(rng)
    draft = _draft("dialogue", task, {}, right_turns(task))
    return replace(draft, flawed=partial(_obliging, task))


def next_call(rng: random.Random) -> Draft:
    """Solved by any valid next call after a dialogue that has come some way."""
    task = draw_task(rng)
    back_end, before = BackEnd(task), list[Call]()
    for _ in range(rng.randrange(len(solved(task)[0]))):
        before.append(rng.choice(back_end.valid_calls()))
        back_end.answer(before[-1])
    reference = {"before": [[call.name, dict(call.arguments)] for call in before]}
    valid = rng.choice(back_end.valid_calls())
    return _draft("next-call", task, reference, (said(valid),))


def _obliging(task: Task) -> tuple[Message, ...]:
    """The turns of somebody who does what the user wants, whether the policies allow it or not."""
    allowed = replace(task, ages={**task.ages, task.target: task.api.most_days}, agrees=True)
    return right_turns(allowed)


def right_turns(task: Task) -> tuple[Message, ...]:
    """The assistant's turns of the shortest way, with the last word."""
    calls, _ = solved(task)
    return (*map(said, calls), Message("assistant", ANSWER))


def said(call: Call) -> Message:
    """The assistant's turn that makes a call."""
    return Message("assistant", "", tool_calls=(ToolCall(call.name, dict(call.arguments)),))


def history(reference: Any) -> tuple[Message, ...]:
    """The turns that were made before the problem, each with its answer."""
    back_end = BackEnd(task_of(reference["task"]))
    turns: list[Message] = []
    for name, arguments in reference.get("before", []):
        call = Call(name, arguments)
        turns += [said(call), Message("tool", back_end.answer(call))]
    return tuple(turns)


def _draft(family: str, task: Task, more: dict[str, Any], plan: tuple[Message, ...]) -> Draft:
    api = task.api
    verb = api.change if task.goal == "change" else api.delete
    return Draft(
        family=family,
        prompt=f"{task.user}: {verb} {api.noun} {task.target}\n{policies(api)}",
        content=" ".join(map(str, astuple(api))),
        reference={"task": task.written(), **more},
        plan=plan,
        tools=tools_of(api),
    )
