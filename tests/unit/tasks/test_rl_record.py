"""What an RL stage remembers over its attempts."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from engines.rollout.consumer import StepResult
from engines.rollout.metrics import Alarms, StopRule
from engines.rollout.producer import Sampled
from engines.rollout.records.gallery import Gallery, read_rollouts, statement_of
from engines.rollout.records.last_steps import LastSteps
from engines.sglang.turn_queue import ServerUse
from engines.types import Group, Problem, Status
from engines.weight_versions import WeightVersions
from infra.errors import TrainingStopped
from tasks import training_record
from tasks.rl.counts import RL_COUNTS_FILE
from tasks.rl.stage_record import RlRecord
from tasks.rl.temperature import EntropyControl, SearchControl
from tasks.rl.temperature_rules import EntropyTarget, TemperatureSearch
from tasks.training_record import SERIES_FILE, thinned
from tests.parts.loop_parts import Notes
from tests.parts.rollout_parts import CharChat, ids
from tests.parts.sample_parts import sample_of

pytestmark = pytest.mark.unit


class Reporter:
    def __init__(self):
        self.steps = {}
        self.warnings = []

    def metrics(self, step, values):
        self.steps[step] = values

    def progress(self, done, total, message=""):
        pass

    def warn(self, message):
        self.warnings.append(message)

    def dataset(self, name, rows, source):
        pass


def record(reporter, notes=None, whole_steps=3, curves=()):
    watch = StopRule(solved_reward=0.9, min_outcome=0.0, max_entropy=None, max_failed_share=0.5)
    made = RlRecord(
        watch=watch, gallery=Gallery(CharChat()), reporter=reporter, steps=9,
        notes=notes or Notes(), curves=curves,
    )  # fmt: skip
    made._last_steps = LastSteps(CharChat(), whole_steps)
    return made


def sample(index, reward, status=Status.COMPLETED, reason=""):
    return sample_of(
        "p", "d", "g", f"g#{index}", index, ids("<0>7"), [0, 0, 0, 1], [0.0, 0.0, 0.0, -0.1],
        [-1, -1, -1, 0], status, reward, {"outcome": reward}, reason,
    )  # fmt: skip


def step(number, *samples, teacher_kl=None):
    groups = [Group(Problem("p", "d", ()), list(samples))]
    sampled = Sampled(groups, groups, waves=1, seconds=0.5)
    trained = {"entropy": 1.0, "mismatch_mean": number * 1e-6, "tokens": 8.0}
    if teacher_kl is not None:
        trained |= {"teacher_kl": teacher_kl, "teacher_kl_d": teacher_kl / 2}
    return StepResult(number, number, sampled, groups, 1, trained, train_seconds=0.25)


def test_a_restored_record_goes_on_where_the_checkpoint_was_taken(tmp_path):
    notes = Notes()
    first = record(Reporter(), notes, whole_steps=0)
    first.observe(step(1, sample(0, 1.0), sample(1, 0.0)), ServerUse(), {})
    first.observe(step(2, sample(0, 1.0), sample(1, 1.0)), ServerUse(), {})
    first.checkpointed(0.5)
    write_rollouts = first.save(tmp_path)
    before = first.summary()
    first.observe(step(3, sample(0, 0.5), sample(1, 0.0)), ServerUse(), {})
    write_rollouts()
    reporter = Reporter()
    second = record(reporter, notes, whole_steps=0)
    second.restore(tmp_path)
    assert sorted(reporter.steps) == [1, 2], "points that were on their way are sent again"
    assert (second.step, second.version) == (2, 2)
    assert second.summary() == before, "what came after it was begun is not in it"
    second.observe(step(3, sample(0, 1.0), sample(1, 1.0)), ServerUse(), {})
    second.checkpointed(0.25)
    summary = second.summary()
    assert summary["checkpoint_seconds"] == 0.75
    assert summary["outcome_first"] == pytest.approx((0.5 + 1 + 1) / 3)
    assert summary["mismatch_mean"] == pytest.approx(2e-6)
    assert summary["train_tokens_per_s"] == 8.0 * 3 / 0.75
    assert summary["generated_tokens"] == 6.0
    second.save(tmp_path)()
    third = Reporter()
    record(third).restore(tmp_path)
    assert sorted(third.steps) == [3], (
        "of the steps before, an earlier checkpoint's attempt saw to it"
    )
    second.write_rollouts(tmp_path)
    labels = [r.label for r in read_rollouts(tmp_path / "rollouts.parquet")]
    assert labels == ["step 1"] * 2 + ["step 2"] * 2 + ["step 3"] * 2
    rows = [pq.read_table(pa.BufferReader(data)).num_rows for _, data in notes.kept["shown"]]
    assert rows == [4, 2], "each is written once"


def test_of_rollouts_noted_twice_the_newest_attempt_s_are_shown(tmp_path):
    notes = Notes()
    torn = record(Reporter(), notes, whole_steps=0)
    torn.observe(step(1, sample(0, 0.25), sample(1, 0.0)), ServerUse(), {})
    torn.save(tmp_path)()
    rest = record(Reporter(), notes, whole_steps=0)
    rest.observe(step(1, sample(0, 1.0), sample(1, 0.0)), ServerUse(), {})
    rest.save(tmp_path)()
    rest.write_rollouts(tmp_path)
    assert [r.reward for r in read_rollouts(tmp_path / "rollouts.parquet")] == [1.0, 0.0]


def test_a_phase_is_judged_by_its_own_steps(tmp_path):
    """Outcomes 1, 1, 1 are solved, and flat; then 0, 0 of harder problems are neither a fall from
    1 nor flat before there are two of them."""
    made = record(Reporter())
    search = TemperatureSearch(window=1, gain=0.5)
    made.temperatures = SearchControl(search, 1.0, None, Notes())

    def seen(number, reward):
        made.observe(step(number, sample(0, reward), sample(1, reward)), ServerUse(), {})
        made.temperatures.save(tmp_path)
        return made.solved, bool(json.loads((tmp_path / "temperature.json").read_text())["due"])

    assert [seen(n, 1.0) for n in (1, 2, 3)] == [(False, False), (False, True), (True, True)]
    made.in_phase(1, "")
    assert made.solved
    made.in_phase(2, "its problems are solved")
    assert (made.solved, made.score) == (False, 1.0)
    assert [seen(n, 0.0) for n in (4, 5)] == [(False, False), (False, True)]


def test_steps_that_train_the_critic_alone_make_no_temperature_flat(tmp_path):
    made = record(Reporter())
    made.temperatures = SearchControl(TemperatureSearch(window=1, gain=0.5), 1.0, None, Notes())
    for number in (1, 2, 3):
        warming = step(number, sample(0, 0.5), sample(1, 0.5))
        made.observe(replace(warming, trained={}, critic={"value_loss": 1.0}), ServerUse(), {})
    made.temperatures.save(tmp_path)
    assert json.loads((tmp_path / "temperature.json").read_text())["outcomes"] == []


def test_a_temperature_that_moves_is_a_curve_and_part_of_a_checkpoint(tmp_path):
    """The entropy is 1 nat, twice the target: ln T falls by 0.05, the most."""

    def stage():
        made = record(Reporter(), curves=["temperature"])
        made.temperatures = EntropyControl(EntropyTarget(kind="entropy", target=0.5), 1.0)
        return made

    first, second = stage(), stage()
    first.observe(step(1, sample(0, 1.0), sample(1, 0.0)), ServerUse(), {})
    first.save(tmp_path)()
    second.restore(tmp_path)
    for made in (first, second):
        made.note({"temperature": made.temperatures.temperature})
        assert made.series.points("temperature") == [(1, pytest.approx(0.9512294, abs=1e-7))]


def test_the_gallery_shows_the_best_and_the_worst_of_a_group(tmp_path):
    made = record(Reporter(), whole_steps=0)
    made.observe(step(1, sample(0, 0.5), sample(1, 0.0), sample(2, 1.0)), ServerUse(), {})
    made.write_rollouts(tmp_path)
    assert [r.reward for r in read_rollouts(tmp_path / "rollouts.parquet")] == [1.0, 0.0]


def test_a_shown_rollout_has_the_trainers_logprobs_if_it_was_scored(tmp_path):
    made = record(Reporter())
    result = step(1, sample(0, 1.0), sample(1, 0.0))
    result.logprobs = {("g#0", 0): np.array([0, 0, 0, -0.25], np.float32)}
    made.observe(result, ServerUse(), {})
    made.write_rollouts(tmp_path)
    rows = {r.rollout_id: r.trainer_logprobs for r in read_rollouts(tmp_path / "rollouts.parquet")}
    assert rows == {"g#0": [0, 0, 0, -0.25], "g#1": []}


def test_a_step_is_shown_by_what_it_trained_on_and_by_what_nothing_trains_on():
    def group(name, ticket):
        samples = [sample(0, 1.0), sample(1, 0.0)]
        for each in samples:
            each.rollout_id = f"{name}#{each.sample_index}"
        return Group(Problem(name, "d", ()), samples, ticket)

    trained, waits, dropped = group("a", 1), group("b", 5), group("c", 3)
    sampled = Sampled([dropped, waits], [waits])
    result = StepResult(4, 4, sampled, [trained], 1, {"entropy": 1.0})
    assert result.shown_groups == [trained, dropped]
    in_turns = StepResult(4, 4, Sampled([dropped, waits], [waits]), [waits], 1, {"entropy": 1.0})
    assert in_turns.shown_groups == [dropped, waits], "what was sampled, where both take turns"


def test_what_became_of_rollouts_and_groups_is_counted_over_attempts(tmp_path):
    first = record(Reporter())
    result = step(1, sample(0, 1.0), sample(1, 0.0, Status.TRUNCATED))
    result.sampled.filtered["too_easy"] = 2
    result.sampled.stale = 1
    first.observe(result, ServerUse(), {})
    first.save(tmp_path)()
    second = record(Reporter())
    second.restore(tmp_path)
    second.observe(step(2, sample(0, 1.0), sample(1, 1.0)), ServerUse(), {})
    skipped = step(3, sample(0, 1.0), sample(1, 1.0))
    skipped.trained, skipped.reused = {}, 1
    second.observe(skipped, ServerUse(), {})
    second.counts.write(tmp_path)
    second.series.write(tmp_path)
    assert json.loads((tmp_path / RL_COUNTS_FILE).read_text()) == {
        "rollouts": {"completed": 5, "truncated": 1},
        "groups": {
            "sampled": 3, "trained on": 2, "trained on again": 0, "of skipped steps": 1,
            "too old to train on": 1, "filtered: too_easy": 2,
        },
    }  # fmt: skip
    curves = json.loads((tmp_path / SERIES_FILE).read_text())
    assert curves["outcome_mean"] == [[1, 0.5], [2, 1.0], [3, 1.0]]
    assert not [name for name in curves if "seconds" in name], "times would differ in every run"


def test_a_failed_sample_is_a_warning_and_too_many_stop_the_run():
    reporter = Reporter()
    made = record(reporter)
    failed = sample(1, 0.0, Status.FAILED, "reward 'x' raised ValueError: no")
    made.observe(step(1, sample(0, 1.0), failed), ServerUse(), {})
    assert reporter.warnings == [
        "step 1: samples failed: reward 'x' raised ValueError: no (1 of 1, the first on p)"
    ]
    assert reporter.steps[1]["failed_share"] == 0.5
    with pytest.raises(TrainingStopped, match=r"100%.*ValueError: no \(2 of 2, the first on p\)"):
        made.observe(step(2, failed, failed), ServerUse(), {})
    assert 2 in reporter.steps


def test_three_solved_steps_solve_the_run():
    made = record(Reporter())
    for number in (1, 2, 3):
        assert not made.solved
        made.observe(step(number, sample(0, 1.0), sample(1, 1.0)), ServerUse(), {})
    assert made.solved


def test_the_distance_to_the_teachers_is_summed_up_at_either_end_over_attempts(tmp_path):
    first = record(Reporter())
    for number in (1, 2):
        first.observe(step(number, sample(0, 1.0), teacher_kl=8.0 / number), ServerUse(), {})
    first.save(tmp_path)()
    second = record(Reporter())
    second.restore(tmp_path)
    for number in (3, 4):
        second.observe(step(number, sample(0, 1.0), teacher_kl=1.0), ServerUse(), {})
    summary = second.summary()
    assert summary["teacher_kl_first"] == (8 + 4 + 1) / 3
    assert summary["teacher_kl_last"] == (4 + 1 + 1) / 3
    assert summary["teacher_kl_d_first"] == (4 + 2 + 0.5) / 3
    assert "teacher_kl_first" not in record(Reporter()).summary()


def test_all_rollouts_of_the_last_steps_are_kept_and_of_the_others_a_sample(tmp_path):
    notes = Notes()
    first = record(Reporter(), notes)
    for number in (1, 2, 3, 4):
        first.observe(step(number, *(sample(i, i / 4) for i in range(5))), ServerUse(), {})
    first.save(tmp_path)()
    second = record(Reporter(), notes)
    second.restore(tmp_path)
    for made in (first, second):
        made.observe(step(5, *(sample(i, i / 4) for i in range(5))), ServerUse(), {})
    out = [tmp_path / name for name in ("first", "second")]
    for made, folder in zip((first, second), out, strict=True):
        folder.mkdir()
        made.write_rollouts(folder)
    files = [folder / "rollouts.parquet" for folder in out]
    labels = [r.label for r in read_rollouts(files[0])]
    expected = {"step 1": 2, "step 2": 2, "step 3": 5, "step 4": 5, "step 5": 5}
    assert labels == [label for label, count in expected.items() for _ in range(count)]
    assert statement_of(files[0]) == (
        "all rollouts of steps 3 to 5; the best and the worst of 3 groups of each earlier step"
    )
    assert files[0].read_bytes() == files[1].read_bytes(), "a resumed stage keeps the same"


def test_a_step_with_too_many_tokens_is_sampled_like_the_others():
    gallery, last = Gallery(CharChat()), LastSteps(CharChat(), most_tokens=20)
    five = step(1, *(sample(i, i / 4) for i in range(5))).sampled.groups
    last.add(1, five, gallery)
    assert (len(gallery), len(last.written())) == (0, 1)
    last.add(2, five * 2, gallery)
    assert (len(gallery), len(last.written())) == (2 + 4, 0), "40 tokens are more than 20"
    assert last.statement == "the best and the worst of 3 groups of each step"


def test_where_the_model_s_text_ends_and_an_observation_begins_is_kept(tmp_path):
    made = Gallery(CharChat())
    told = sample_of(
        "p", "d", "g", "g#0", 0, ids("<q>ab[x]c"), [0, 0, 0, 1, 1, 0, 0, 0, 1], [0.0] * 9,
        [-1, -1, -1, 0, 0, -1, -1, -1, 0], Status.COMPLETED, 1.0, {"outcome": 1.0},
    )  # fmt: skip
    made.add("step 1", [told])
    made.write(tmp_path)
    (row,) = read_rollouts(tmp_path / "rollouts.parquet")
    assert (row.prompt, row.response, row.cuts) == ("<q>", "ab[x]c", [2, 5])


def test_rollouts_of_a_prompt_that_could_not_be_written_are_counted_and_shown(tmp_path):
    reporter = Reporter()
    made = record(reporter, whole_steps=0)
    reason = "prompt: problem p: no system role"
    unwritten = sample(0, 0.0, Status.FAILED, reason)
    unwritten = replace(
        unwritten, tokens=unwritten.tokens[:0], loss_mask=unwritten.loss_mask[:0],
        logprobs=unwritten.logprobs[:0], weight_versions=WeightVersions(),
    )  # fmt: skip
    made.observe(step(1, unwritten, *[sample(n, 1.0) for n in range(1, 10)]), ServerUse(), {})
    made.write_rollouts(tmp_path)
    assert reporter.steps[1]["failed_share"] == 0.1
    assert any(reason in said for said in reporter.warnings)
    rows = list(read_rollouts(tmp_path / "rollouts.parquet"))
    assert len(rows) == 2


def test_a_checkpoint_after_many_steps_is_as_large_as_one_after_few(tmp_path, monkeypatch):
    monkeypatch.setattr(training_record, "FEWEST_POINTS", 100)
    made = record(Reporter())
    groups = step(1, sample(0, 1.0), sample(1, 0.0), teacher_kl=0.5)
    sizes = {}
    for number in range(1, 801):
        groups.step = groups.version = number
        made.observe(groups, ServerUse(), {})
        if number % 100 == 0:
            made._gallery.take()
            made.save(tmp_path)
            sizes[number] = (tmp_path / "state.json").stat().st_size
    assert sizes[800] < 1.05 * sizes[400]
    assert len(made.curve.training) == 200
    assert made.summary()["outcome_first"] == made.summary()["teacher_kl_last"] == 0.5


def test_held_out_scores_of_a_long_stage_are_thinned_and_end_with_the_last():
    points = [0]
    for number in range(1, 5000):
        points = thinned([*points, number])
    assert len(points) <= 800
    assert points[0] == 0
    assert points[-3:] == [4997, 4998, 4999]


def test_a_figure_that_is_no_longer_what_it_was_is_told_once():
    """20 steps are the usual and the median of the last 5 counts: from the third slow step on."""
    reporter = Reporter()
    told = record(reporter)
    for number in range(1, 41):
        figures = {"mfu": 0.4 if number < 26 else 0.15, "staleness_mean": 0.0}
        told.observe(step(number, sample(0, 1.0), sample(1, 0.0)), ServerUse(), figures)
    (warning,) = reporter.warnings
    assert warning.startswith(
        "step 28: mfu fell to 0.15, from 0.4 in the 20 steps before: a rank's"
    )


@pytest.mark.parametrize(
    ("name", "usual", "then", "said"),
    [
        ("generate_tokens_per_s", 1000.0, 501.0, ""),
        ("generate_tokens_per_s", 1000.0, 499.0, "fell to 499, from 1e+03"),
        ("publish_pause_seconds", 0.7, 1.5, "rose to 1.5, from 0.7"),
        ("publish_pause_seconds", 0.03, 0.9, ""),
        ("staleness_mean", 0.5, 1.25, "rose to 1.25, from 0.5"),
        ("kv_use_max", 0.5, 0.9, ""),
        ("kv_use_max", 0.5, 0.98, "cache is 98% full"),
    ],
)
def test_an_alarm_has_a_bound_and_comes_again_after_better_steps(name, usual, then, said):
    alarms, told = Alarms(), []
    for phase, value in enumerate((usual, then, usual, then)):
        for number in range(30):
            told += [(phase, line) for line in alarms.observe(number, {name: value})]
            told += [(phase, line) for line in alarms.observe(number, {name: 0.0})]
    assert [phase for phase, _ in told] == ([1, 3] if said else [])
    assert all(said in line for _, line in told)
