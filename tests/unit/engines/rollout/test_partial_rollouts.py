"""A step ends without rollouts that are still written; they go on in the next, and none is lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from engines.rollout.consumer import StepResult
from engines.rollout.drivers.session_host import End, SessionHost
from engines.rollout.metrics import step_metrics
from engines.rollout.records.journals import RolloutJournal, TurnJournal
from engines.rollout.tickets import Admission
from engines.rollout.workers import worker_pool
from engines.rollout.workers.worker import RolloutWorker
from engines.rollout.workers.worker_pool import WorkerPool
from engines.types import AssistantTurn, Message, Problem, Rollout, Sample, Sampling, Status, Step
from tests.parts.loop_parts import Notes, Parts, resumed, until_killed
from tests.parts.rollout_parts import CharChat, Policy, domain
from tests.unit.engines.rollout.test_worker_pool import Handle, Servers

pytestmark = pytest.mark.unit

TOKENS = 4
"""of a rollout in a round"""
LONGEST = 40


def story(prompt: str, sampling: Sampling) -> str:
    """What remains of a text that follows from the seed; most are short, some are long."""
    draws = random.Random(sampling.seed)
    length = draws.choice([1, 2, 3, 3, 5, 9, 21, LONGEST + 9])
    text = "".join(draws.choice("0123456789") for _ in range(length))
    return text[len(prompt.rpartition(">")[2].rpartition("]")[2]) :]


def reward(answer: str) -> float:
    return float(sum(map(int, answer)) % 3)


class Asks:
    """Answers two turns."""

    def __init__(self) -> None:
        self._turns = 0

    async def start(self, problem: Problem) -> Asks:
        return Asks()

    async def step(self, turn: AssistantTurn) -> Step:
        self._turns += 1
        return Step((Message("user", "go on"),), done=self._turns == 3)

    async def close(self) -> None: ...


def stage(
    notes: Notes,
    *,
    version: int = 0,
    turns: int = 1,
    judge: Callable[[str], float] = reward,
    **more: object,
) -> Parts:
    asks = Asks() if turns > 1 else None
    made = domain("d", judge, environment=asks, max_turns=turns, max_new_tokens=LONGEST)
    given = {"max_staleness": 2, "oversample": 2.0, "waves": 3, **more}
    return Parts(
        story, notes=notes, version=version, round_tokens=TOKENS, domains=[made],
        journal=RolloutJournal(notes), turns=TurnJournal(notes), **given,
    )  # fmt: skip


def samples_of(results: Sequence[StepResult]) -> list[list[Sample]]:
    return [[s for group in result.groups for s in group.samples] for result in results]


def figures(results: Sequence[StepResult]) -> list[dict[str, float]]:
    """Of each step, less what a clock says and what was recovered."""
    hidden = ("seconds", "per_s", "recovered")
    return [
        {k: v for k, v in step_metrics(r).items() if not any(word in k for word in hidden)}
        for r in results
    ]


async def test_a_step_ends_without_long_rollouts_and_none_of_their_tokens_is_lost() -> None:
    parts = stage(Notes())
    results = await parts.run(8)
    assert all(len(r.groups) == 4 for r in results)
    trained = [s for step in samples_of(results) for s in step]
    spans = [s for s in trained if len(s.weight_versions.sampled) > 1]
    assert len(spans) > 5, "they went on with newer weights"
    assert all(max(s.weight_versions.sampled) - s.weight_versions.oldest <= 2 for s in spans)
    whole = {s.rollout_id: s.tokens.tolist() for s in trained}
    unhurried = await Parts(
        story, domains=[domain("d", reward, max_new_tokens=LONGEST)], oversample=2.0, waves=3
    ).run(8)
    others = {s.rollout_id: s.tokens.tolist() for step in samples_of(unhurried) for s in step}
    common = whole.keys() & others.keys()
    assert len(common) > 20
    assert all(whole[name] == others[name] for name in common), "cut in pieces, the same tokens"
    assert [r.dropped for r in results] == [[]] * 8
    told = figures(results)
    assert max(step["staleness_max"] for step in told) == 2
    assert told[0]["rollouts_unfinished"] > 0
    assert told[0]["tokens_unfinished"] > 0
    assert told[-1]["rollouts_unfinished"] == 0, "the last step begins no more than it needs"
    asked = sum(len(s.tokens) for s in trained) - sum(s.num_prompt_tokens for s in trained)
    dropped = sum(step["unused_tokens"] for step in told)
    assert asked + dropped == sum(step["generated_tokens"] for step in told)


@pytest.mark.parametrize("turns", [1, 3])
@pytest.mark.parametrize("checkpoint", range(1, 6))
async def test_killed_in_any_step_it_ends_with_the_same_bits(
    checkpoint: int, turns: int, tmp_path: Path
) -> None:
    whole = await stage(Notes(), turns=turns).run(7)
    notes = Notes()
    first = stage(notes, turns=turns)
    before: list[StepResult] = []

    async def after_step(result: StepResult) -> bool:
        before.append(result)
        if result.step == checkpoint:
            first.buffer.save(tmp_path)
            first.sampler.save(tmp_path)()
        return False

    running = asyncio.create_task(first.loop.run(first=1, last=7, after_step=after_step))
    while len(before) < checkpoint + 1:  # killed in the middle of the step after the next
        await asyncio.sleep(0)
    for _ in range(60):
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

    second = stage(notes, turns=turns, version=checkpoint)
    second.buffer.restore(tmp_path)
    second.sampler.restore(tmp_path)
    await second.takes.recover(checkpoint + 1)
    await second.producer.recover(second.sampler.first_open, second.takes.from_step(checkpoint + 1))
    asked = len(second.policy.calls)
    after = await second.run(7, first=checkpoint + 1)
    assert samples_of(before[:checkpoint] + after) == samples_of(whole)
    assert figures(before[:checkpoint] + after) == figures(whole)
    assert asked == 0
    assert sum(step_metrics(r)["rollouts_recovered"] for r in after) > 0


@pytest.mark.parametrize("seed", range(8))
async def test_a_resumed_stage_takes_what_it_took_where_verdicts_come_now(
    seed: int, tmp_path: Path
) -> None:
    """Rewards that failed in the first attempt answer in the second, so that tickets begin at later
    versions: none takes turns up that would make it too old."""
    draws = random.Random(seed)
    attempts, notes, save = [0], Notes(), draws.randint(1, 3)
    sizes = {
        "max_staleness": draws.randint(1, 2), "oversample": draws.choice([1.25, 1.5, 2.0]),
        "waves": draws.randint(1, 3), "wanted": draws.randint(3, 5),
    }  # fmt: skip

    def judge(answer: str) -> float:
        if not attempts[0] and sum(map(int, answer)) % 5 == 0:
            raise ValueError("not now")
        return reward(answer)

    def parts(version: int = 0) -> Parts:
        return stage(notes, version=version, judge=judge, **sizes)

    before, version = await until_killed(parts(), save, save + 3, tmp_path)
    attempts[0] = 1
    after = await resumed(parts(version), save, 8, tmp_path)
    taken = [[g.ticket for g in r.groups] for r in after[:3]]
    assert taken == [[g.ticket for g in r.groups] for r in before[save:]]


@pytest.mark.parametrize("seed", range(12))
async def test_nothing_becomes_too_old_whatever_the_settings(seed: int) -> None:
    draws = random.Random(seed)
    staleness, oversample = draws.randint(1, 3), draws.choice([1.25, 1.5, 2.0, 3.0])
    parts = stage(
        Notes(), seed=seed, max_staleness=staleness, oversample=oversample,
        waves=draws.randint(1, 3), wanted=draws.randint(2, 6),
    )  # fmt: skip
    results = await parts.run(12)
    assert [r.dropped for r in results] == [[]] * 12
    assert max(max(r.staleness, default=0) for r in results) <= staleness
    taken = [g.ticket for r in results for g in r.groups]
    assert len(set(taken)) == len(taken)
    filtered = sum(r.sampled.filtered.total() for r in results)
    assert len(taken) + filtered == parts.producer.source.next, (
        "every ticket was trained or dropped"
    )


def test_what_is_due_is_what_later_steps_have_no_place_for() -> None:
    two = Admission(2, max_staleness=1)
    assert two.due([2, 2, 3], now=3) == 2
    assert two.due([2, 2, 2], now=2) == 1, "the next step has two places"
    assert two.due([3, 3], now=3) == 0
    assert two.due([], now=3) == 0


class Client(Policy):
    """A policy of the same version as another one, with what a client has beside it."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        super().__init__(story)
        self.on_trouble: Callable[[], object] = lambda: None
        self.must_wait: Callable[[], bool] = lambda: False

    @property
    def version(self) -> int:
        return self._policy.version

    @version.setter
    def version(self, value: int) -> None: ...


async def test_workers_some_of_them_lost_give_the_bits_of_one_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_pool, "_PAUSE_S", 0.0)
    whole = await stage(Notes(), turns=3).run(6)
    parts = stage(Notes(), turns=3)
    handles: list[Handle] = []

    async def start(position: int) -> Handle:
        client, chat = Client(parts.policy), CharChat()
        domains = [domain("d", reward, environment=Asks(), max_turns=3, max_new_tokens=LONGEST)]
        made = RolloutWorker(client=client, chat=chat, domains=domains, context_length=200, seed=0)
        handles.append(Handle(client, made))
        return handles[-1]

    pool = WorkerPool(start, 2, servers=Servers(), chat=CharChat())
    await pool.open()
    parts.producer._roller = pool
    steps = 0

    async def lose_one() -> None:
        """While all rests; the next one is lost in the middle of a round."""
        nonlocal steps
        steps += 1
        if steps < 4:
            handles[-1].kill()
        asyncio.get_running_loop().call_later(0.05, handles[0].kill)

    results = await parts.run(6, after_each=lose_one)
    await pool.close()
    assert len(handles) > 4
    assert samples_of(results) == samples_of(whole)
    assert figures(results) == figures(whole)


class SideBySide:
    """Two sessions at the same time, then a third that goes on from neither."""

    async def run(self, problem: Problem, sessions: SessionHost) -> Rollout:
        async def one(number: int) -> None:
            session = sessions.open([*sessions.prompt_ids])
            await sessions.turn(session, max_new_tokens=6 + number)
            if number:
                session.extend([ord("]")])
                await sessions.turn(session, max_new_tokens=3)

        await asyncio.gather(one(0), one(5))
        await one(1)
        return sessions.finish(End(Status.COMPLETED), [Message("assistant", "1")])


async def test_sessions_of_one_rollout_wait_for_each_other() -> None:
    made = domain("d", float, driver=SideBySide(), max_new_tokens=200)
    parts = Parts(
        lambda prompt, _: "7" * 30, domains=[made], round_tokens=TOKENS, max_staleness=2,
        oversample=2.0, needs_spread=False,
    )  # fmt: skip
    results = await parts.run(4)
    assert all(len(r.groups) == 4 for r in results)
    sizes = {s.num_trained_tokens for step in samples_of(results) for s in step}
    assert sizes == {6, 7 + 3, 11 + 3}
