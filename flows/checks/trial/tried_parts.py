"""Tries a recipe's parts as the stages will use them, or one part by itself in a domain made for
it.

Problems are drawn, a demonstration is rendered with its loss mask, an environment takes a turn,
rewards judge.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, Literal, TypeAlias

from curricula.built_in_curricula import build as build_curriculum
from engines.chat import Chat
from engines.chat.mode import Thoughts
from engines.draws import draw_examples
from engines.types import Demonstration, Problem, Split
from flows.checks.trial.live_parts import LiveParts, build_parts, read_rows, try_changed, try_custom
from flows.checks.trial.request import (
    Attempts,
    Blind,
    Findings,
    Observer,
    PlacedDomain,
    TrialRequest,
)
from flows.checks.trial.rewards import try_rewards
from flows.checks.trial.tried_domain import (
    base_chat,
    decide_mode,
    render,
    try_driver,
    try_environment,
    try_problems,
    try_prompts,
)
from infra.errors import InputError
from infra.hooks import resolve
from rewards.built_in_rewards import ASKING
from rewards.built_in_rewards import BUILT_IN as REWARDS
from rewards.group_rewards import is_group_reward
from tasks.base.spec import BaseSettings, RandomModel
from tasks.domain import CurriculumSpec, Domain, DriverSpec, RewardTerm
from tasks.evaluate.score_statistics import CUTTABLE
from tasks.nothink import asks_no_thought

_SHOWN = 8
"""demonstrations that are rendered and judged"""


def try_parts(request: TrialRequest, observer: Observer) -> Findings:
    """Never raises for a fault of a part."""
    with asyncio.Runner() as runner:
        attempts = Attempts(observer, runner)
        able = [_try_domain(placed, request, attempts) for placed in request.domains]
        _try_forced_thoughts(request, able, attempts)
        for changed in request.changed:
            try_changed(changed, request.base, attempts)
        for part in request.custom:
            try_custom(part, attempts)
        return attempts.findings()


class _Thoughts(IntEnum):
    """What can be forced of a model's thoughts; each has what those before it have."""

    NONE = 0
    END = 1
    """they are ended"""
    WAIT = 2
    """they are made to go on as well"""


def _try_forced_thoughts(
    request: TrialRequest, able: Sequence[_Thoughts], attempts: Attempts
) -> None:
    """Ways to sample that would leave every domain out; those that do so in some are skipped
    there."""
    most = max(able, default=_Thoughts.WAIT)
    for name, has_to_wait in request.forced_thoughts.items():
        if most is _Thoughts.NONE:
            attempts.problems.append(
                f"evaluate.sampling: {name}: the base has no thoughts in any domain, so none can be"
                " ended or go on; leave `thought_tokens` and `thought_waits` out"
            )
        elif has_to_wait and most is _Thoughts.END:
            attempts.problems.append(
                f"evaluate.sampling: {name}: the base's tokenizer has no token for the end of a"
                " thought, at which a thought could be made to go on; leave `thought_waits` out"
            )


def _thoughts_of(chat: Chat, problems: Sequence[Problem]) -> _Thoughts:
    try:
        if not any(map(chat.may_think, problems)):
            return _Thoughts.NONE
    except InputError:  # said elsewhere
        return _Thoughts.WAIT
    return _Thoughts.WAIT if chat.thought_end_ids else _Thoughts.END


def _try_domain(placed: PlacedDomain, request: TrialRequest, attempts: Attempts) -> _Thoughts:
    """Return what can be forced of its thoughts; all where that is not known."""
    able = _Thoughts.WAIT
    live = build_parts(placed, attempts)
    if live is None:
        return able
    at = f"{live.where}.curriculum"
    if not read_rows(at, live.name, live.curriculum, request.base, attempts):
        return able
    problems = try_problems(live, placed.counts, request.seed, attempts)
    _say_what_calls_do(live, problems, attempts)
    if placed.without_thinking and not any(problem.thinking for problem in problems):
        attempts.problems.append(asks_no_thought(placed.without_thinking, live.domain.name))
    count = min(_SHOWN, placed.counts.get("sft", _SHOWN))
    fine, shown = attempts.call(
        f"{live.where}.curriculum",
        f"{live.name}.demonstrations({count}, seed={request.seed})",
        lambda: draw_examples(live.curriculum, count, request.seed),
    )
    if not fine:
        return able
    decided: list[Demonstration] = shown[:count]
    _, chat = attempts.call("base", "its chat template", lambda: base_chat(request.base, shown))
    if chat is not None:
        able = _thoughts_of(chat, problems) if problems else able
        decided = decide_mode(live, problems, decided, chat, attempts)
        decided = try_prompts(live, problems, decided, chat, attempts)
    if not decided:
        return able
    _check_turns(live, decided, attempts)
    # A template may drop thoughts that the model is asked for, where none is trained on.
    is_trained = "sft" in placed.counts or (chat and chat.mode.thoughts is not Thoughts.NONE)
    is_rendered = chat is not None and is_trained and render(live, decided, chat, attempts)
    try_environment(live, decided[0], attempts)
    if chat is not None and is_rendered:
        try_driver(live, decided[0], chat, attempts)
    try_rewards(live, decided, attempts)
    return able


def _say_what_calls_do(live: LiveParts, problems: Sequence[Problem], attempts: Attempts) -> None:
    offering = sum(bool(problem.tools) for problem in problems)
    if offering and live.environment is None and live.domain.driver.name == CUTTABLE:
        attempts.notes.append(
            f"domain {live.domain.name}: {offering} of {len(problems)} problems offer tools, and"
            " its curriculum has no environment: no call is run; a rollout ends with its first"
            " turn, and the rewards judge the calls in it"
        )


def _check_turns(live: LiveParts, shown: Sequence[Demonstration], attempts: Attempts) -> None:
    """Check whether a rollout may take as many turns as demonstrations do. A driver of the user's
    own counts turns in its own way."""
    most = live.domain.max_turns
    if live.domain.driver.name != CUTTABLE:
        return
    taken = [sum(turn.role == "assistant" for turn in each.turns) for each in shown]
    if min(taken) > most:
        attempts.problems.append(
            f"{live.where}.max_turns: is {most}, and each of {len(taken)} demonstrations of"
            f" {live.name} takes {min(taken)} or more turns: every such rollout would be cut off"
            f" with an outcome of 0; set it to {max(taken)} or more"
        )
    elif max(taken) > most:
        longer = sum(count > most for count in taken)
        attempts.cautions.append(
            f"{live.where}.max_turns: is {most}, and {longer} of {len(taken)} demonstrations of"
            f" {live.name} take more turns, up to {max(taken)}: such rollouts would be cut off with"
            " an outcome of 0"
        )


OfDomain: TypeAlias = Literal["driver", "curriculum", "reward"]
"""kinds that are tried so"""

_COUNTS: Mapping[Split, int] = {"sft": 8, "rl": 32, "distill": 32, "heldout": 32}
"""problems of each split that are drawn"""
_BASE = BaseSettings(random=RandomModel())
"""for its tokenizer and chat template"""


def findings_about(kind: OfDomain, name: str, options: dict[str, Any], curriculum: str) -> Findings:
    """Return what the trial of a recipe would find about the part. Drivers and rewards are tried
    with the problems and demonstrations of `curriculum`. Raises InputError for one that cannot be
    built."""
    problems = CurriculumSpec(name=curriculum)
    rewards = [RewardTerm(name="format", outcome=True)]
    driver = DriverSpec()
    match kind:
        case "driver":
            driver = DriverSpec(name=name, options=options)
        case "curriculum":
            problems = CurriculumSpec(name=name, options=options)
        case "reward" if name in ASKING:
            raise InputError(f"reward {name!r} asks a model: `tributary check` tries it")
        case "reward" if name not in REWARDS and is_group_reward(resolve("reward", name, {})):
            rewards.append(RewardTerm(name=name, options=options, group=True))
        case "reward":
            rewards = [RewardTerm(name=name, options=options, outcome=True)]
    has_environment = build_curriculum(problems.name, problems.options).environment() is not None
    domain = Domain(
        name="tried",
        curriculum=problems,
        rewards=rewards,
        driver=driver,
        max_new_tokens=4096,
        max_turns=8 if has_environment else 1,
    )
    request = TrialRequest(
        hooks=[], data=[], base=_BASE, seed=0, changed=[], custom=[],
        domains=[PlacedDomain(where="domain", domain=domain, counts=dict(_COUNTS))],
    )  # fmt: skip
    return try_parts(request, Blind())
