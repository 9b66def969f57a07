"""Scores of a policy on held-out problems while it trains."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest

from engines.rollout.consumer import StepResult
from engines.rollout.evaluator import Evaluated, Evaluator, HeldOut
from engines.rollout.metrics import StopRule, step_metrics
from engines.rollout.producer import Sampled
from engines.rollout.records.gallery import Gallery
from engines.types import Group, Problem, Rollout, Status, Transcript
from infra.errors import EngineError
from tasks.policy import Evaluation
from tasks.rl.curve import Curve, ScorePoint, score_points
from tasks.rl.evaluation import EvaluationSchedule, evaluator_of
from tasks.rl.spec import RlSettings
from tasks.rl.stage_record import RlRecord
from tasks.stage import Pulse
from tests.parts.loop_parts import Notes, Parts
from tests.parts.rollout_parts import CharChat, Policy, domain, roller
from tests.parts.sample_parts import sample_of
from tests.parts.stage_parts import ListReporter

pytestmark = pytest.mark.unit

DOMAIN = domain("d", float)


def by_seed(prompt, sampling):
    """What it answers hangs on the turn's seed alone, as a real engine's draws do."""
    return str(sampling.seed % 2)


def record_of(reporter):
    return RlRecord(
        watch=StopRule(solved_reward=2.0, min_outcome=0.0, max_entropy=None, max_failed_share=1.0),
        gallery=Gallery(CharChat()), reporter=reporter, steps=9, notes=Notes(),
    )  # fmt: skip


class Stage:
    """A loop with its evaluations, as the stage's body joins them."""

    def __init__(self, settings, **parts):
        self.parts = Parts(by_seed, before_publish=self.finish, **parts)
        self.reporter = ListReporter()
        self.record = record_of(self.reporter)
        self.done = 0
        self.seen = []
        evaluator = evaluator_of(settings, roller(self.parts.policy), [DOMAIN], seed=0)
        context = SimpleNamespace(pulse=Pulse(), reporter=self.reporter)
        self.schedule = EvaluationSchedule(
            settings, evaluator, context, self.record, self.parts.policy
        )
        self.parts.policy.is_repairing = False

    async def finish(self):
        await self.schedule.finish()
        self.seen.append([p.version for p in self.points])

    @property
    def points(self):
        return self.record.curve.held_out.get("d", [])

    async def run(self, first, last, of):
        async def after_each():
            self.record.step += 1
            await self.schedule.begin_if_due(is_over=self.record.step == of)

        self.record.step = first - 1
        await self.schedule.begin_if_due()
        await self.parts.run(last, first=first, after_each=after_each)


EVERY_2 = Evaluation(every=2, problems=6, samples=2, timeout_s=5.0)


def test_check_draws_the_held_out_problems_too():
    settings = RlSettings(steps=3, problems_per_step=4, optimizer={"lr": 1e-4})
    assert settings.drawn == {"rl": 4}
    assert settings.model_copy(update={"evaluate": EVERY_2}).drawn == {"rl": 4, "heldout": 6}


@pytest.mark.parametrize("max_staleness", [0, 2])
async def test_the_policy_is_scored_at_the_start_every_n_steps_and_at_the_end(max_staleness):
    stage = Stage(EVERY_2, max_staleness=max_staleness, oversample=3.0)
    await stage.run(1, 5, of=5)
    await stage.schedule.finish()
    assert [(p.step, p.version) for p in stage.points] == [(0, 0), (2, 2), (4, 4), (5, 5)]
    assert [(p.problems, p.wanted) for p in stage.points] == [(6, 6)] * 4
    assert stage.seen == [[0], [0], [0, 2], [0, 2], [0, 2, 4]], "before the next version is there"
    assert sorted(stage.reporter.steps) == [0, 2, 4, 5]
    assert stage.reporter.steps[4]["eval_outcome_d"] == stage.points[2].outcome
    assert stage.reporter.warnings == []


async def test_what_is_sampled_for_training_is_the_same_with_it_and_without():
    runs = [Stage(settings, oversample=1.5) for settings in (None, EVERY_2)]
    for stage in runs:
        await stage.run(1, 4, of=4)
        await stage.schedule.finish()
    without, watched = (stage.parts.trainer for stage in runs)
    assert watched.tokens == without.tokens
    assert watched.events == without.events
    assert [len(stage.points) for stage in runs] == [0, 3]
    assert len(runs[1].parts.policy.calls) == len(runs[0].parts.policy.calls) + 3 * 6 * 2


async def test_every_evaluation_draws_the_same_random_numbers_for_the_same_problems():
    stage = Stage(EVERY_2)
    await stage.run(1, 2, of=2)
    await stage.schedule.finish()
    assert stage.points[0].outcome == stage.points[1].outcome, "its answers hang on seeds alone"
    rows = stage.record._gallery._rows().to_pylist()
    shown = {(r["label"], r["problem_id"], r["rollout_id"]) for r in rows}
    assert ("evaluation after step 2", "d/heldout/3", "evaluation/d/heldout/3#0") in shown
    assert len(shown) == 2 * 4


async def test_a_resumed_stage_makes_up_for_the_evaluation_that_was_cut_off(tmp_path):
    first = Stage(EVERY_2)
    await first.run(1, 2, of=9)  # the checkpoint of step 2: its own evaluation is under way
    first.record.save(tmp_path)()
    await first.schedule.close()
    assert [p.step for p in first.points] == [0]
    rest = Stage(EVERY_2, version=2)
    rest.record.restore(tmp_path)
    assert sorted(rest.reporter.steps) == [0], "reported again, for it may have been on its way"
    await rest.run(3, 5, of=5)
    await rest.schedule.finish()
    assert [(p.step, p.version) for p in rest.points] == [(0, 0), (2, 2), (4, 4), (5, 5)]


async def test_steps_that_publish_nothing_do_not_repeat_an_evaluation():
    stage = Stage(EVERY_2)
    for step in range(4):
        stage.record.step = step
        await stage.schedule.begin_if_due()
    await stage.schedule.finish()
    assert [p.step for p in stage.points] == [0, 2]


def evaluator_with(say, timeout_s=5.0, problems=3, samples=1):
    policy = Policy(say)
    held_out = HeldOut(DOMAIN, DOMAIN.curriculum.problems("heldout", problems, 0))
    made = Evaluator(
        roller=roller(policy), held_out=[held_out], samples=samples, timeout_s=timeout_s
    )
    return made, policy


async def scored(evaluator, step=4, version=0, is_repairing=False):
    reporter = ListReporter()
    record = record_of(reporter)
    context = SimpleNamespace(pulse=Pulse(), reporter=reporter)
    record.step = step
    policy = SimpleNamespace(version=version, is_repairing=is_repairing)
    schedule = EvaluationSchedule(Evaluation(every=1), evaluator, context, record, policy)
    await schedule.begin_if_due()
    await schedule.finish()
    return record.curve.held_out["d"][0], reporter


async def test_a_score_is_the_mean_over_problems_with_its_standard_error():
    answers = iter("101100")
    evaluator, _ = evaluator_with(lambda *_: next(answers), samples=2)
    point, reporter = await scored(evaluator)
    # problems .5, 1, 0: mean .5, deviation .5, error .5 / sqrt(3)
    assert point.stderr == pytest.approx(0.288675)
    assert point == ScorePoint(
        step=4, version=0, outcome=0.5, stderr=point.stderr, problems=3, wanted=3
    )
    told = reporter.steps[4]
    assert (told["eval_outcome_d"], told["eval_problems_d"]) == (0.5, 3.0)


def rollout_of(status: Status, rewards: dict[str, float]) -> Rollout:
    weights = (
        {"outcome": 0.0, "reward-model": 2.0, "else": 0.0} if "reward-model" in rewards else {}
    )
    sample = sample_of(
        "p", "d", "g", "r", 0, [7, 8, 9], [0, 1, 1], [0, -0.1, -0.1], [-1, 0, 0], status,
        rewards=rewards, reward_weights=weights if "reward-model" in rewards else {},
    )  # fmt: skip
    return Rollout((sample,), Transcript(Problem("p", "d", ()), (), status, 2))


def judged_rollout(proxy: float, outcome: float) -> Rollout:
    return rollout_of(Status.COMPLETED, {"reward-model": proxy, "outcome": outcome})


def evaluated(step: int, *groups: list[Rollout]) -> Evaluated:
    return Evaluated(step, step, len(groups), {"d": groups}, 1.0)


def test_the_best_of_n_by_a_reward_model_by_hand():
    broken = rollout_of(Status.MALFORMED, {"outcome": 0.0})  # as bad as the worst: 2 x .1
    failed = rollout_of(Status.FAILED, {})
    groups = (
        [judged_rollout(0.9, 0.0), judged_rollout(0.5, 1.0), failed],
        [judged_rollout(0.1, 0.4), judged_rollout(0.3, 0.8)],
        [broken, judged_rollout(0.2, 1.0)],
    )
    point = score_points(evaluated(0, *groups))["d"]
    assert point.outcome == pytest.approx((0.5 + 0.6 + 0.5) / 3)
    assert point.proxy == pytest.approx((1.4 + 0.4 + 0.3) / 3)
    one, two = point.best_of_n
    assert (one.n, one.kl, one.outcome, one.proxy) == (
        1, 0.0, pytest.approx(point.outcome), pytest.approx(point.proxy),
    )  # fmt: skip
    assert (two.n, two.kl) == (2, pytest.approx(0.193147, abs=1e-6))
    assert two.outcome == pytest.approx((0.0 + 0.8 + 1.0) / 3)
    assert two.proxy == pytest.approx((1.8 + 0.6 + 0.4) / 3)
    # deviations -.6, .2, .4 of the mean .6: sqrt(.56 / 2 / 3)
    assert two.stderr == pytest.approx(0.305505, abs=1e-6)
    assert score_points(evaluated(2, *groups))["d"].best_of_n == []
    # One problem with one verdict leaves the best of two to the others.
    lost = [judged_rollout(0.9, 0.0), failed, failed]
    one, two = score_points(evaluated(0, lost, *groups[1:]))["d"].best_of_n
    assert (one.outcome, two.outcome) == (pytest.approx(1.1 / 3), pytest.approx(0.9))
    alone = score_points(evaluated(0, [rollout_of(Status.COMPLETED, {"outcome": 1.0})] * 2))["d"]
    assert (alone.outcome, alone.proxy, alone.best_of_n) == (1.0, None, [])


def test_scores_of_a_part_of_the_problems_say_nothing_of_a_plateau(tmp_path):
    """Two of three problems, which are the short ones; also in the attempt that goes on."""
    record = record_of(ListReporter())
    assert record.held_out_score is None
    whole = evaluated(1, *[[judged_rollout(0.5, outcome)] for outcome in (1.0, 0.0, 0.5)])
    record.evaluated(whole, 0.0)
    assert record.held_out_score == (1, 0.5)
    record.evaluated(replace(whole, step=2, failure="1 problems were not finished in 1.0 s"), 0.0)
    assert record.held_out_score is None
    record.save(tmp_path)()
    other = record_of(ListReporter())
    other.restore(tmp_path)
    assert (other.held_out_score, other.last_evaluated) == (None, 2)
    other.evaluated(replace(whole, step=3), 0.0)
    assert other.held_out_score == (3, 0.5)


def test_the_distance_from_the_start_is_that_of_answers_and_of_the_policy_that_was_scored():
    samples = [judged_rollout(0.5, 1.0).samples[0], rollout_of(Status.FAILED, {}).samples[0]]
    group = Group(Problem("p", "d", ()), samples)
    sampled = Sampled([group], [group], waves=1, seconds=0.5)
    metrics = step_metrics(StepResult(1, 1, sampled, [group], 1, {"reference_kl": 0.25}))
    assert metrics["kl_from_start"] == 0.5, "2 tokens an answer; the failed one is not learned from"
    assert metrics["response_tokens_mean"] == 2
    curve = Curve(kl_from_start={1: 0.0, 2: 0.1, 4: 0.3})
    assert [curve.kl_after(step) for step in (0, 1, 2, 3, 4)] == [0.0, 0.1, 0.3, 0.3, 0.3]
    assert Curve().kl_after(3) is None


def test_how_far_votes_and_models_were_apart_is_a_metric_of_those_that_were_judged():
    given = [{"taste/disagreement": 0.5}, {"taste/disagreement": 0.25}, {"outcome": 1.0}]
    rollouts = [rollout_of(Status.COMPLETED, rewards) for rewards in given]
    failed = rollout_of(Status.FAILED, {"taste/disagreement": 9.0})
    group = Group(Problem("p", "d", ()), [r.samples[0] for r in (*rollouts, failed)])
    sampled = Sampled([group], [group], waves=1, seconds=0.5)
    metrics = step_metrics(StepResult(1, 1, sampled, [group], 1, {}))
    assert metrics["disagreement_taste"] == 0.375
    assert [name for name in metrics if "disagreement" in name] == ["disagreement_taste"]


async def test_when_its_time_is_over_what_is_finished_counts():
    evaluator, policy = evaluator_with(lambda *_: "1", timeout_s=1.0)
    policy.free_calls = 2
    policy.may_answer.clear()
    point, reporter = await asyncio.wait_for(scored(evaluator), 5)
    assert (point.outcome, point.problems, point.wanted) == (1.0, 2, 3)
    assert reporter.steps[4]["eval_problems_d"] == 2.0
    assert reporter.warnings == [
        "evaluation after step 4: 1 problems were not finished in 1.0 s. The score is of the"
        " others; if this repeats, raise `evaluate.timeout_s` or lower `evaluate.problems`"
    ]


async def test_a_lost_engine_leaves_training_to_find_out():
    def say(prompt, _):
        if prompt == "<1>":
            raise EngineError("all servers are gone")
        return "1"

    point, reporter = await scored(evaluator_with(say)[0])
    assert (point.outcome, point.problems) == (1.0, 2)
    assert "1 problems were lost: EngineError: all servers are gone" in reporter.warnings[0]


async def test_a_server_that_cannot_come_back_before_the_publish_does_not_hold_it_up(monkeypatch):
    monkeypatch.setattr("engines.rollout.evaluator._STUCK_S", 1.0)
    monkeypatch.setattr("engines.rollout.evaluator._LOOK_S", 0.01)
    evaluator, policy = evaluator_with(lambda *_: "1", timeout_s=600.0)
    policy.free_calls = 1
    policy.may_answer.clear()
    point, reporter = await asyncio.wait_for(scored(evaluator, is_repairing=True), 5)
    assert (point.outcome, point.problems) == (1.0, 1)
    assert "2 problems were not finished" in reporter.warnings[0]


async def test_without_a_finished_problem_there_is_no_score():
    evaluator, policy = evaluator_with(lambda *_: "1", timeout_s=0.05)
    policy.may_answer.clear()
    point, reporter = await scored(evaluator)
    assert (point.outcome, point.problems) == (None, 0)
    assert "eval_outcome_d" not in reporter.steps[4]


async def test_tokens_of_other_weights_do_not_count():
    evaluator, policy = evaluator_with(lambda *_: "1")
    policy.version = 3
    point, reporter = await scored(evaluator, version=2)
    assert point.problems == 0
    assert "other weights than those of version 2" in reporter.warnings[0]


async def test_an_evaluation_that_is_given_up_leaves_nothing_under_way():
    evaluator, policy = evaluator_with(lambda *_: "1")
    policy.may_answer.clear()
    evaluator.begin(0, 0)
    await asyncio.sleep(0.01)
    await evaluator.close()
    assert not evaluator.is_running
    assert len(asyncio.all_tasks()) == 1
