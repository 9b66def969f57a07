"""Rewards and environments in processes of their own: what hangs, blocks or dies is one sample."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import psutil
import pytest

from engines.rollout.metrics import StopRule, most_frequent_reason
from engines.types import Status
from infra.errors import InputError, TrainingStopped
from infra.processes import part_process
from infra.processes.part_process import PartFailed, PartProcess, PartRaised, part_stacks
from tasks.domain import Domain
from tasks.live_domain import open_domain
from tests.parts import misbehaving_parts
from tests.parts.rollout_parts import Policy, roller

pytestmark = pytest.mark.unit

LIMIT = 0.4
PARTS = misbehaving_parts.__name__


@asynccontextmanager
async def opened(
    reward: str, timeout_s: float = LIMIT, curriculum: str = "Bare", **more: Any
) -> AsyncGenerator[Any]:
    """A domain as a stage opens it, with a reward that misbehaves."""
    terms = [{"name": f"{PARTS}:{reward}", "outcome": True, "timeout_s": timeout_s}]
    fields = {"name": "d", "curriculum": {"name": f"{PARTS}:{curriculum}"}, "rewards": terms}
    domain = open_domain(Domain.model_validate(fields | {"timeout_s": timeout_s} | more))
    try:
        await asyncio.gather(*[process.start() for process in domain.processes])
        yield domain.live
    finally:
        for process in domain.processes:
            await process.close()


async def rolled(live: Any, say: Callable[..., str], size: int = 1) -> list[Any]:
    (problem,) = live.curriculum.problems("rl", 1, 0)
    made = await roller(Policy(say)).roll_group(
        live, problem, size, temperature=1.0, group_id="g", seed_name="g"
    )
    return [sample for rollout in made for sample in rollout.samples]


@pytest.mark.parametrize(
    ("reward", "place"),
    [
        ("waits", "in waits"),
        ("blocks", "in blocks"),
        ("backtracks", "in backtracks"),
        ("refuses_to_end", "in refuses_to_end"),
    ],
)
async def test_a_reward_that_hangs_is_one_failed_sample_and_stalls_nothing(
    reward: str, place: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    grace = 1.5 if reward == "refuses_to_end" else 0.5
    monkeypatch.setattr(part_process, "GRACE_SECONDS", grace)
    beats, over = list[float](), asyncio.Event()

    async def beat() -> None:
        while not over.is_set():
            await asyncio.sleep(0.05)
            beats.append(time.monotonic())

    async with opened(reward) as live:
        beating = asyncio.create_task(beat())
        (sample,) = await rolled(live, lambda *_: "7")
        over.set()
        await beating
    assert sample.status is Status.FAILED
    assert sample.reason.startswith(f"reward '{PARTS}:{reward}' hung: no answer within 0.4 s")
    assert f"misbehaving_parts.py:{_line(reward)}" in sample.reason
    assert place in sample.reason
    assert "tools/0" in caplog.text
    assert max(b - a for a, b in pairwise(beats)) < 1.0


def _line(reward: str) -> int | str:
    """Where it stands; not known to the line where it is in a loop."""
    first = getattr(misbehaving_parts, reward).__code__.co_firstlineno
    return {"waits": first + 1, "blocks": first + 1, "backtracks": first + 2}.get(reward, "")


async def test_one_call_that_blocks_costs_its_own_sample_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(part_process, "GRACE_SECONDS", 0.5)
    answers = iter("1234756")
    async with opened("blocks_on_7") as live:
        samples = await rolled(live, lambda *_: next(answers), size=7)
    by_answer = {chr(s.tokens[-2]): s.status for s in samples}
    assert by_answer.pop("7") is Status.FAILED
    assert set(by_answer.values()) == {Status.COMPLETED}


async def test_a_part_that_always_blocks_costs_a_few_limits_and_ends_the_stage_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(part_process, "GRACE_SECONDS", 0.5)
    monkeypatch.setattr(part_process, "MAX_HUNG", 2)
    before = _children()
    async with opened("blocks", timeout_s=0.1) as live:
        samples = await rolled(live, lambda *_: "7", size=12)
        assert len(_children() - before) <= 1
    assert {s.status for s in samples} == {Status.FAILED}
    watch = StopRule(solved_reward=1, min_outcome=0, max_entropy=None, max_failed_share=0.2)
    metrics, failure = {"failed_share": 1.0, "outcome_mean": 0.0}, most_frequent_reason(samples)
    with pytest.raises(TrainingStopped, match=rf"100%.*reward '{PARTS}:blocks' hung"):
        watch.observe(1, metrics, failure)


async def test_a_plain_function_judges_too_in_a_process_of_its_own() -> None:
    async with opened("plain") as live:
        (sample,) = await rolled(live, lambda *_: "7")
    assert (sample.status, sample.reward) == (Status.COMPLETED, 0.0)
    assert sample.reason != f"in {os.getpid()}"


async def test_a_reward_that_ends_the_program_fails_its_sample() -> None:
    async with opened("exits") as live:
        (sample,) = await rolled(live, lambda *_: "7")
    assert sample.reason == f"reward '{PARTS}:exits' raised SystemExit: 3"


async def test_a_reward_whose_process_is_killed_is_asked_again() -> None:
    before = _children()
    async with opened("judge", timeout_s=20.0) as live:
        (child,) = _children() - before
        child.send_signal(signal.SIGSTOP)
        rolling = asyncio.create_task(rolled(live, lambda *_: "7"))
        await asyncio.sleep(0.2)
        child.kill()
        (sample,) = await rolling
    assert (sample.status, sample.reward) == (Status.COMPLETED, 1.0)


async def test_a_reward_that_cannot_be_built_is_bad_input() -> None:
    with pytest.raises(InputError, match=r"Unbuildable'.*SystemExit\(3\)"):
        async with opened("Unbuildable"):
            pass


@pytest.mark.parametrize(
    ("tool", "status", "reason"),
    [
        ("wait", Status.FAILED, "hung: no answer within 0.4 s, at misbehaving_parts.py:"),
        ("block", Status.FAILED, "hung: no answer within 0.4 s, at misbehaving_parts.py:"),
        ("fail", Status.FAILED, "environment raised KeyError: 'index'"),
        ("break", Status.MALFORMED, "no such tool"),
    ],
)
async def test_a_tool_call_has_a_time_limit(
    tool: str, status: Status, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part_process, "GRACE_SECONDS", 0.5)
    async with opened("plain", curriculum="Tools", max_turns=3, max_new_tokens=30) as live:
        (sample,) = await rolled(live, lambda *_: f"!{tool}")
    assert (sample.status, reason in sample.reason) == (status, True), sample.reason


async def test_turns_of_an_episode_go_to_the_same_object() -> None:
    async with opened("judge", 20.0, "Tools", max_turns=3, max_new_tokens=30) as live:
        (sample,) = await rolled(live, lambda prompt, _: "7" if "[42]" in prompt else "!ask")
    assert (sample.status, sample.reward) == (Status.COMPLETED, 1.0)


def _children() -> set[psutil.Process]:
    """This process has others, of other tests."""
    return set(psutil.Process().children())


async def _ended(condition: Callable[[], bool]) -> None:
    for _ in range(100):
        if condition():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("the condition never came true")


async def test_closing_leaves_no_process_and_cancels_who_waits() -> None:
    part = PartProcess("reward 'w'", f"{PARTS}:Waiting", (), 60.0)
    before = _children()
    await part.start()
    (child,) = _children() - before
    call = asyncio.ensure_future(part.call("wait", about="p"))
    await asyncio.sleep(0.2)
    assert ("reward 'w'", True) in [(n, "serve" in s or "select" in s) for n, s in part_stacks()]
    await part.close()
    with pytest.raises(asyncio.CancelledError):
        await call
    await _ended(lambda: not child.is_running())


def test_what_a_part_raises_is_told_with_its_class() -> None:
    error = PartRaised(part_process.Raised(("my.Broken", "builtins.Exception"), "no box"))
    assert isinstance(error, PartFailed)
    assert str(error) == "raised Broken: no box"
