"""Mean and spread of several runs."""

from __future__ import annotations

import math

import pytest

from flows.compare import Spread, compare
from flows.report import Report, ReportStage
from infra.errors import InputError

pytestmark = pytest.mark.unit


def _report(run: str, sft: float, rl: float, *, cached: bool = False) -> Report:
    scores = {"base": {"maths": 0.0}, "ppo-sft": {"maths": sft}, "ppo": {"maths": rl}}
    stage = ReportStage(
        name="ppo-rl", kind="rl", digest="d", cached=cached, seconds=rl * 100, artifact=""
    )
    return Report(
        run=run, state="completed", seconds=1.0, stages=[stage], scores=scores, greedy=scores
    )


def test_mean_and_sample_deviation_by_hand() -> None:
    """0.5, 0.6, 0.7: mean 0.6; squares 0.01 + 0 + 0.01 over 2 are 0.01, its root 0.1."""
    found = compare([_report("a", 0.5, 0.8), _report("b", 0.6, 0.8), _report("c", 0.7, 0.8)])
    cold = found.scores["ppo-sft"]["maths"]
    assert cold.mean == pytest.approx(0.6)
    assert cold.deviation == pytest.approx(0.1)
    assert cold.values == [0.5, 0.6, 0.7]
    assert found.runs == ["a", "b", "c"]


def test_a_gain_is_that_of_each_run_over_its_own_cold_start() -> None:
    """Gains 0.3, 0.2, 0.1: mean 0.2, deviation 0.1, error 0.1 / sqrt 3: 2 sqrt 3 errors away."""
    found = compare([_report("a", 0.5, 0.8), _report("b", 0.6, 0.8), _report("c", 0.7, 0.8)])
    gain = found.gains["ppo"]["maths"]
    assert gain.values == pytest.approx([0.3, 0.2, 0.1])
    assert gain.standard_errors == pytest.approx(2 * math.sqrt(3))
    assert list(found.gains) == ["ppo"]


def test_one_run_has_no_spread() -> None:
    assert Spread.of([0.4]).deviation == 0
    assert Spread.of([0.4]).standard_errors is None


def test_runs_that_agree_are_infinitely_far_from_nought() -> None:
    assert Spread.of([0.4, 0.4]).standard_errors == math.inf


def test_a_model_that_a_run_lacks_is_left_out() -> None:
    short = _report("b", 0.6, 0.8)
    del short.scores["ppo"]
    found = compare([_report("a", 0.5, 0.8), short])
    assert set(found.scores) == {"base", "ppo-sft"}
    assert found.gains == {}


def test_a_cached_stage_took_no_time() -> None:
    found = compare([_report("a", 0.5, 0.8), _report("b", 0.5, 0.7, cached=True)])
    assert found.seconds["ppo-rl"].values == [80.0]


def test_a_run_without_scores_is_named() -> None:
    empty = _report("b", 0.5, 0.8).model_copy(update={"scores": {}})
    with pytest.raises(InputError, match="run b has no scores to compare"):
        compare([_report("a", 0.5, 0.8), empty])
