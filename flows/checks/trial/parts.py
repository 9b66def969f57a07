"""Tries a recipe's parts as the stages will use them.

Problems are drawn, a demonstration is rendered with its loss mask, an environment takes a turn,
rewards judge.
"""

from __future__ import annotations

import asyncio

from engines.draws import draw_examples
from flows.checks.trial.bounded_steps import Attempts, Observer
from flows.checks.trial.custom import try_custom
from flows.checks.trial.demonstrations import render
from flows.checks.trial.driver import try_driver
from flows.checks.trial.environment import try_environment
from flows.checks.trial.live_parts import build_parts, read_rows, try_changed
from flows.checks.trial.problems import try_problems
from flows.checks.trial.request import Findings, PlacedDomain, TrialRequest
from flows.checks.trial.rewards import try_rewards

_SHOWN = 8
"""demonstrations that are rendered and judged"""


def try_parts(request: TrialRequest, observer: Observer) -> Findings:
    """Never raises for a fault of a part."""
    with asyncio.Runner() as runner:
        attempts = Attempts(observer, runner)
        for placed in request.domains:
            _try_domain(placed, request, attempts)
        for changed in request.changed:
            try_changed(changed, attempts)
        for part in request.custom:
            try_custom(part, attempts)
        return attempts.findings()


def _try_domain(placed: PlacedDomain, request: TrialRequest, attempts: Attempts) -> None:
    live = build_parts(placed, attempts)
    if live is None:
        return
    if not read_rows(f"{live.where}.curriculum", live.name, live.curriculum, attempts):
        return
    try_problems(live, placed.counts, request.seed, attempts)
    count = min(_SHOWN, placed.counts.get("sft", _SHOWN))
    fine, shown = attempts.call(
        f"{live.where}.curriculum",
        f"{live.name}.demonstrations({count}, seed={request.seed})",
        lambda: draw_examples(live.curriculum, count, request.seed),
    )
    if not fine or not shown:
        return
    chat = render(live, shown[:count], request.base, attempts)
    try_environment(live, shown[0], attempts)
    if chat is not None:
        try_driver(live, shown[0], chat, attempts)
    try_rewards(live, shown[:count], attempts)
