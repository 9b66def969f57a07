"""Which samples of a step are shown, and of which the ranks hand logprobs back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engines.rollout.consumer import StepResult
from engines.rollout.metrics import StopRule
from engines.rollout.producer import Sampled
from engines.rollout.records import gallery
from engines.rollout.records.gallery import (
    Gallery,
    ShownSteps,
    best_and_worst,
    first_of,
    read_rollouts,
    statement_of,
    to_score,
)
from engines.sglang.turn_queue import ServerUse
from engines.types import Group, Problem, Status
from infra.store.artifacts import StageCheckpoints
from infra.store.store import Store
from tasks.rl.stage_record import RlRecord
from tests.parts.rollout_parts import CharChat
from tests.parts.sample_parts import sample_of
from tests.parts.stage_parts import ListReporter

pytestmark = pytest.mark.unit


def group(name: str, *rewards: float, length: int = 4) -> Group:
    samples = [
        sample_of(
            name, "d", name, f"{name}#{n}", n, [1] * length, [0] + [1] * (length - 1),
            [0.0] * length, [-1] + [0] * (length - 1), Status.COMPLETED, reward,
        )
        for n, reward in enumerate(rewards)
    ]  # fmt: skip
    return Group(Problem(name, "d", ()), samples)


def test_best_and_worst_of_groups_that_differ():
    groups = [group("a", 1.0, 1.0), group("b", 0.5, 0.0, 1.0), group("c", 0.0, 0.25)]
    assert [s.rollout_id for s in best_and_worst(groups)] == ["b#2", "b#1", "c#1", "c#0"]
    assert [s.rollout_id for s in best_and_worst([groups[0]])] == ["a#1", "a#0"]


def test_what_is_shown_is_scored_first_and_as_much_else_as_there_is_room():
    groups = [group("a", 0.5, 0.0, 1.0), group("b", 0.0, 1.0)]
    samples = [s for g in groups for s in g.samples]
    assert to_score(samples, groups) == [1, 2, 3, 4, 0]


def test_long_samples_are_scored_as_long_as_there_is_room():
    groups = [group("a", 0.5, 0.0, 1.0, length=30_000)]
    assert to_score(groups[0].samples, groups) == [1, 2]


def test_of_long_samples_fewer_groups_are_shown_but_one_at_least():
    groups = [group(name, 0.0, 1.0, length=30_000) for name in "abc"]
    assert [s.rollout_id for s in best_and_worst(groups)] == ["a#1", "a#0"]
    groups[0] = group("a", 0.0, 1.0, length=100_000)
    assert [s.rollout_id for s in best_and_worst(groups)] == ["a#1", "a#0"]
    assert [s.rollout_id for s in first_of(groups[0].samples)] == ["a#0"]
    assert len(first_of(groups[1].samples)) == 2


@pytest.mark.parametrize(("tokens", "one_in"), [(100, 32), (64_000, 512)])
def test_of_a_long_stage_few_steps_are_shown_evenly_spaced(tokens: int, one_in: int):
    steps = ShownSteps()
    for step in range(1, 20_001):
        steps.take(step, tokens)
        assert len(steps.tokens) <= 800
        assert sum(steps.tokens.values()) <= 4_000_000
        if step % 4_999 == 0:
            steps = ShownSteps.of_state(json.loads(json.dumps(steps.state())))
    assert steps.one_in == one_in
    assert list(steps.tokens) == list(range(one_in, 20_001, one_in))


def test_a_step_of_more_tokens_than_all_may_have_is_shown_alone():
    steps = ShownSteps()
    assert steps.take(0, 9_000_000)
    assert not steps.take(1, 9_000_000)
    assert list(steps.tokens) == [0]


def _record(tmp_path: Path, attempt: int) -> RlRecord:
    watch = StopRule(solved_reward=2.0, min_outcome=0.0, max_entropy=None, max_failed_share=0.5)
    notes = StageCheckpoints(Store(str(tmp_path / "s")), "rl", "ab" * 32, attempt, tmp_path)
    return RlRecord(
        watch=watch, gallery=Gallery(CharChat()), reporter=ListReporter(), steps=99, notes=notes
    )


def test_the_file_of_a_long_stage_has_rows_of_few_steps_and_that_of_a_resumed_one_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(gallery, "MOST_STEPS", 4)
    files: list[bytes] = []
    for attempts in ([range(1, 41)], [range(1, 24), range(21, 41)]):
        place = tmp_path / str(len(attempts))
        saved = place / "saved"
        saved.mkdir(parents=True)
        made = _record(place, 1)
        for number, steps in enumerate(attempts, 1):
            made = _record(place, number)
            if number > 1:
                made.restore(saved)
            for step in steps:
                groups = [group("p", 0.0, 0.25, 0.5)]
                sampled = Sampled(groups, groups, waves=1, seconds=0.5)
                made.observe(
                    StepResult(step, step, sampled, groups, 1, {"tokens": 8.0}), ServerUse(), {}
                )
                if step % 5 == 0:
                    made.save(saved)()
        made.write_rollouts(place)
        files.append((place / "rollouts.parquet").read_bytes())
    rows = read_rollouts(place / "rollouts.parquet")
    whole = [f"step {step}" for step in (38, 39, 40) for _ in range(3)]
    assert [row.label for row in rows] == [
        *(f"step {step}" for step in (8, 16, 24, 32) for _ in range(2)),
        *whole,
    ]
    assert statement_of(place / "rollouts.parquet") == (
        "all rollouts of steps 38 to 40; the best and the worst of 3 groups of one in 8 earlier"
        " steps"
    )
    assert files[0] == files[1], "a resumed stage shows the same"
