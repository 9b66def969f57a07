"""Rewards that see all rollouts of a problem: alone, in their process, and in a step's groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from engines.rollout.loop import fill
from engines.rollout.records.journals import Finished
from engines.rollout.roller import judge_together
from engines.types import Message, Problem, Rollout, Sample, Status, Transcript, Verdict
from infra.errors import InputError
from rewards.built_in_rewards import build
from rewards.group_rewards import GroupRubric, GroupTerm, build_group_reward
from tasks.domain import Domain
from tasks.domain_verdicts import Verdicts
from tasks.live_domain import open_domain
from tests.parts.rollout_parts import Policy, domain, producer_of, roller

pytestmark = pytest.mark.unit

EXAMPLE = Path(__file__).parents[3] / "examples" / "group_reward"


def transcripts(*tokens: int) -> list[Transcript]:
    problem = Problem("p/1", "d", (Message("user", "2+2"),), metadata={"source": "sums"})
    said = (Message("assistant", "4"),)
    return [Transcript(problem, said, Status.COMPLETED, count) for count in tokens]


@pytest.fixture(autouse=True)
def hooks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    (tmp_path / "group_parts.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))


SOURCE = """
class Class:
    def __init__(self, by=1):
        self.by = by
    async def __call__(self, transcripts):
        return [self.by * t.num_tokens for t in transcripts]
def too_few(transcripts): return [1.0]
def nothing(transcripts): return None
def words(transcripts): return "ab"
def not_finite(transcripts): return [float("nan") for _ in transcripts]
def raises(transcripts): raise OSError("no ranker")
def single(transcript): return 1.0
def credits(transcripts):
    from engines.types import Verdict
    return [Verdict(1.0, turns=[1.0]) for _ in transcripts]
"""


def rubric(name: str, weight: float = 1.0, sources: tuple[str, ...] = ()) -> GroupRubric:
    return GroupRubric([GroupTerm(name, weight, build_group_reward(name), sources)])


async def test_each_rollout_gets_its_own_verdict() -> None:
    found = await rubric("shorter:shorter", 0.1).judge(transcripts(40, 50, 40, 60))
    scores = [2.5 / 3, 1 / 3, 2.5 / 3, 0.0]
    assert [each.breakdown["shorter:shorter"] for each in found] == pytest.approx(scores)
    assert [each.reward for each in found] == pytest.approx([0.1 * score for score in scores])
    assert found[1].breakdown["shorter:shorter/tokens"] == 50
    (alone,) = await rubric("shorter:shorter").judge(transcripts(40))
    assert alone.reward == 0
    doubled = build_group_reward("group_parts:Class", {"by": 2})
    assert [v.score for v in await doubled(transcripts(1, 2))] == [2, 4]
    (unasked,) = await rubric("group_parts:raises", sources=("letters",)).judge(transcripts(1))
    assert (unasked.reward, unasked.failed) == (0.0, False), "problems of other sources"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("too_few", "returned 1 verdicts of 2 rollouts"),
        ("nothing", "returned None: a reward of a group returns a list"),
        ("words", "returned str 'ab': a reward of a group returns a list"),
        ("not_finite", "returned nan: every score must be a finite number"),
        ("credits", "returned a Verdict with `turns`"),
        ("raises", "raised OSError: no ranker"),
    ],
)
async def test_what_goes_wrong_fails_the_whole_group_and_is_no_score(name: str, why: str) -> None:
    found = await rubric(f"group_parts:{name}").judge(transcripts(1, 2))
    assert [(each.failed, each.breakdown) for each in found] == [(True, {})] * 2
    assert f"reward 'group_parts:{name}' {why}" in found[0].reason


def test_groups_and_rollouts_are_not_confused() -> None:
    with pytest.raises(InputError, match="said to judge a `group`, and takes none"):
        build_group_reward("group_parts:single")
    with pytest.raises(InputError, match="write `group: true`"):
        build("shorter:shorter")
    outcome = {"name": "math", "outcome": True}
    for term, said in (
        ({"name": "repetition", "group": True}, "judges one rollout"),
        ({"name": "shorter:shorter", "group": True, "outcome": True}, "by itself"),
    ):
        rewards: list[Any] = [outcome, term]
        with pytest.raises(ValidationError, match=said):
            Domain.model_validate(
                {"name": "d", "curriculum": {"name": "reasoning"}, "rewards": rewards}
            )


async def test_it_is_asked_in_a_process_of_its_own() -> None:
    rewards = [{"name": "math", "outcome": True}, {"name": "shorter:shorter", "group": True}]
    written = {"name": "d", "curriculum": {"name": "reasoning"}, "rewards": rewards}
    opened = open_domain(Domain.model_validate(written))
    (process,) = opened.group_processes
    assert not opened.processes
    assert opened.live.group_judge is not None
    try:
        found = await opened.live.group_judge.judge(transcripts(3, 4))
    finally:
        await process.close()
    assert [each.reward for each in found] == [1.0, 0.0]


class Longest:
    """1 for the answer whose text is largest; raises where told to."""

    def __init__(self, fails_on: str = "") -> None:
        self.fails_on = fails_on
        self.seen: list[int] = []

    async def __call__(self, transcripts: Sequence[Transcript]) -> Sequence[Verdict]:
        self.seen.append(len(transcripts))
        if transcripts[0].problem.messages[0].content == self.fails_on:
            raise OSError("no ranker")
        best = max(t.answer for t in transcripts)
        return [Verdict(float(t.answer == best), reason="ranked") for t in transcripts]


async def test_what_a_rule_vetoed_gets_nothing_of_its_group_either() -> None:
    judged = replace(
        domain("d", float), group_judge=GroupRubric([GroupTerm("own:rank", 0.5, Longest())])
    )
    policy = Policy(lambda _, sampling: "1")
    made, _ = producer_of(roller(policy), [judged], groups_per_step=1, group_size=2)
    samples = (await fill(made)).groups[0].samples
    vetoed = replace(samples[0], reward=0.0, rewards={"outcome": 1.0, "vetoed": 1.0})
    rollout = Rollout((vetoed,), transcripts(1)[0])
    (found,) = await judge_together(judged, [rollout])
    assert (found.samples[0].reward, found.samples[0].rewards["own:rank"]) == (0.0, 1.0)


async def test_a_steps_groups_have_it_and_a_failed_group_is_counted_and_not_trained_on() -> None:
    reward = Longest(fails_on="1")
    judged = replace(
        domain("d", float), group_judge=GroupRubric([GroupTerm("own:rank", 0.5, reward)])
    )
    policy = Policy(lambda _, sampling: str((sampling.seed or 0) % 2))
    made, _ = producer_of(roller(policy), [judged], groups_per_step=3, group_size=4)
    sampled = await fill(made)
    groups = {group.ticket: group.samples for group in sampled.groups}
    assert reward.seen == [4] * len(groups)
    first, failed = groups[0], groups[1]
    best = max(s.rewards["outcome"] for s in first)
    for sample in first:
        rank = float(sample.rewards["outcome"] == best)
        assert sample.rewards["own:rank"] == rank
        assert sample.reward == sample.rewards["outcome"] + 0.5 * rank
        assert sample.reason.endswith("ranked")
        assert sample.reward_weights == {"own:rank": 0.5}
    assert {s.status for s in failed} == {Status.FAILED}
    assert {len(s.rewards) for s in failed} == {0}
    assert "reward 'own:rank' raised OSError: no ranker, asked about the whole group" in (
        failed[0].reason
    )
    assert 1 not in [group.ticket for group in sampled.kept]
    verdicts = Verdicts()
    verdicts.observe(sampled.groups)
    (warning,) = [w for w in verdicts.warnings([]) if "verdicts" in w.what]
    assert warning.figures == {"failed": 4.0, "asked": 4.0 * len(groups)}


async def test_a_resumed_stage_has_the_group_judged_again_and_adds_nothing_twice() -> None:
    judged = replace(
        domain("d", float), group_judge=GroupRubric([GroupTerm("own:rank", 0.5, Longest())])
    )
    problem = judged.curriculum.problems("rl", 1, 0)[0]
    kept: dict[str, Finished] = {}

    async def rolled() -> list[Sample]:
        rolling = roller(Policy(lambda _, sampling: str((sampling.seed or 0) % 2))).roll_group(
            judged, problem, 4, temperature=1.0, group_id="g", seed_name="g", known=dict(kept),
            on_finished=lambda made: kept.update({made.rollout_id: made}),
        )  # fmt: skip
        rollouts = await judge_together(judged, await rolling)
        return [sample for rollout in rollouts for sample in rollout.samples]

    whole = await rolled()
    assert len(kept) == 4
    assert all("own:rank" not in each.samples[0].rewards for each in kept.values())
    assert all("own:rank" in sample.rewards for sample in whole)
    assert await rolled() == whole
