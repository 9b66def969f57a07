"""Which model a run calls best, and what it says of its experts. Tests worked out by hand."""

from __future__ import annotations

import pytest

from flows.reports.outcome import outcome_of, what_training_did
from flows.reports.report import Gain
from tests.parts.report_parts import cell, report

pytestmark = pytest.mark.unit


def outcome(scores, cells=(), **fields):
    return outcome_of(report(scores, **fields), {"cells": list(cells)})


def right(model, count, domain="a", problems=12):
    return cell(model, domain, [[1.0]] * count + [[0.0]] * (problems - count))


VERSIONS = {"x": ["x-sft", "x"], "y": ["y"]}


def test_the_best_model_is_said_first():
    """x is right on 9 problems more than y of 12: McNemar, 2 / 2^9; n = 14, 9 / 14 of variance
    10 / 14 - (9 / 14)^2, so .64286 -+ 1.959964 x .14651."""
    scores = {"base": {"a": 0.9}, "x-sft": {"a": 0.8}, "x": {"a": 1.0}, "y": {"a": 0.25}}
    found = outcome(scores, [right("x", 12), right("y", 3)], versions=VERSIONS)
    assert found.headline == "x is best: 1.000 on a."
    assert found.detail == (
        "y follows with 0.250: +75.0 points (95% +35.5 to +93.0, p = 0.004) between them."
    )
    assert found.winner == "x"


def test_a_lead_that_may_be_chance_makes_no_model_best():
    scores = {"x": {"a": 0.5}, "y": {"a": 0.25}}
    found = outcome(scores, [right("x", 6), right("y", 3)], versions=VERSIONS)
    assert found.headline == "x has the highest score: 0.500 on a."
    assert found.detail.endswith("p = 0.250) between them, which may be chance: no model is surely"
                                 " best.")  # fmt: skip
    assert (found.winner, found.best[0].is_sure) == ("", False)
    assert outcome(scores, versions=VERSIONS).detail.endswith("so no test says more.")


@pytest.mark.parametrize(("others", "is_sure"), [(1, True), (3, True), (4, False)])
def test_the_lead_over_every_other_model_is_tested_and_the_tests_are_counted(others, is_sure):
    """7 more of 12 than each of them: p = 2 / 2^7 = .0156; three times that is .047, four .0625."""
    names = ["x", *(f"y{n}" for n in range(others))]
    cells = [right(name, 8 if name == "x" else 1) for name in names]
    scores = {name: {"a": (8 if name == "x" else 1) / 12} for name in names}
    found = outcome(scores, cells, versions={name: [name] for name in names})
    assert (found.winner == "x") is is_sure
    assert found.best[0].is_sure is is_sure


def test_the_headline_of_domains_is_tested_over_all_their_problems():
    """In a x is right on 4 more of 12, in b on 4 more: 8 of 24 that differ, 2 / 2^8 = .008."""
    scores = {"x": {"a": 0.5, "b": 0.5}, "y": {"a": 1 / 6, "b": 1 / 6}}
    cells = [right(m, n, d) for d in "ab" for m, n in (("x", 6), ("y", 2))]
    found = outcome(scores, cells, versions=VERSIONS)
    assert found.headline == "x is best: 0.500 as the mean of 2 domains."
    assert "p = 0.008" in found.detail
    assert [best.is_sure for best in found.best] == [False, False], "4 problems: p = .125"


def test_one_model_alone_is_not_called_best():
    found = outcome({"base": {"a": 0.25}, "x": {"a": 0.5}}, [right("base", 3), right("x", 6)],
                    versions={"x": ["x"]})  # fmt: skip
    assert found.headline == "x reaches 0.500 on a."
    assert found.detail.startswith("+25.0 points (95% ")
    assert found.detail.endswith(", p = 0.250) from base.")
    assert found.winner == ""


def test_nobody_who_scores_0_is_best():
    found = outcome({"base": {"a": 0.0}, "x": {"a": 0.0}}, versions={"x": ["x"]})
    assert found.headline == "No model scored above 0 on a."
    assert (found.winner, found.best[0].model) == ("", "")
    assert found.best[0].said == "a: no model scored above 0"


def test_equal_models_are_not_ranked():
    scores = {"x": {"a": 0.5, "b": 0.1}, "y": {"a": 0.1, "b": 0.5}}
    found = outcome(scores, versions={"x": ["x"], "y": ["y"]})
    assert found.headline == "x and y are equal: 0.300 as the mean of 2 domains."
    assert found.winner == ""


def test_a_model_that_lacks_a_domain_is_not_ranked_by_its_mean():
    scores = {"x": {"a": 0.9}, "y": {"a": 0.1, "b": 0.5}}
    headline = outcome(scores, versions={"x": ["x"], "y": ["y"]}).headline
    assert headline == "y reaches 0.300 as the mean of 2 domains."


def test_a_lead_is_tested_on_the_same_problems():
    """y is right on 5 more problems of 6 and wrong on none more: McNemar, 2 / 2^5."""
    cells = [cell("x", "a", [[0.0]] * 6), cell("y", "a", [[1.0]] * 5 + [[0.0]])]
    found = outcome({"x": {"a": 0.0}, "y": {"a": 5 / 6}}, cells, versions={"x": ["x"], "y": ["y"]})
    (best,) = found.best
    assert (best.model, best.second) == ("y", "x")
    assert best.lead is not None
    assert best.lead.p == pytest.approx(2 / 32)


def test_an_experts_gain_has_both_scores_and_a_test():
    cells = [cell("x-sft", "a", [[0, 1], [0, 0]]), cell("x", "a", [[1, 1], [1, 0]])]
    gain = Gain(domain="a", since="x-sft", before=0.25, after=0.75, mean=0.5, low=0.1, high=0.9)
    found = outcome(
        {"x-sft": {"a": 0.25}, "x": {"a": 0.75}}, cells, versions={"x": ["x-sft", "x"]},
        gains={"x": gain},
    )  # fmt: skip
    (one,) = found.gains
    assert (one.before.value, one.after.value, one.change) == (0.25, 0.75, gain)


def gain(since, before, after, p, domain="a", by=("rl",)):
    mean = after - before
    return Gain(domain=domain, since=since, before=before, after=after, mean=mean, low=mean - 0.1,
                high=mean + 0.1, p=p, by=list(by))  # fmt: skip


def test_the_headline_says_what_training_did_and_what_the_unified_model_keeps():
    """.45 and .47 of the experts' .5 and .5 are 92%."""
    scores = {
        "x": {"a": 0.5, "b": 0.0},
        "y": {"a": 0.0, "b": 0.5},
        "unified": {"a": 0.45, "b": 0.47},
    }
    gains = {"x": gain("x-sft", 0.27, 0.5, 0.0004), "unified": gain("unified-sft", 0.4, 0.46, 0.2,
             "mean")}  # fmt: skip
    said = "RL helped x: +23.0 points, p < 0.001; unified keeps 90% of the experts' scores."
    found = outcome(scores, gains=gains, versions={"x": ["x-sft", "x"], "unified": ["unified"]})
    assert found.headline == said
    assert "has the highest score" in found.detail
    both = {**gains, "y": gain("base", 0.1, 0.5, 0.01, "b", ("sft", "rl"))}
    assert what_training_did(report(scores, gains=both)) == (
        "RL helped x: +23.0 points, p < 0.001; SFT and RL helped y: +40.0 points, p = 0.010;"
        " unified keeps 92% of the experts' scores."
    )
    scored = {**gains, "y": both["y"].model_copy(update={"teaches": False})}
    assert "unified keeps 90%" in what_training_did(report(scores, gains=scored))


def test_experts_that_fared_alike_are_named_together():
    names = {"x": 0.001, "y": 0.002, "z": 0.003}
    gains = {name: gain("base", 0.5, 0.25, p, by=("opd",)) for name, p in names.items()}
    assert what_training_did(report({}, gains=gains)) == (
        "On-policy distillation hurt x (-25.0 points, p = 0.001), y (-25.0 points, p = 0.002) and z"
        " (-25.0 points, p = 0.003)."
    )


def test_the_headline_counts_the_tests_of_all_experts():
    """.03 alone is below .05; as the smaller of two it is .06."""
    alone = {"x": gain("x-sft", 0.2, 0.4, 0.03)}
    assert what_training_did(report({}, gains=alone)).startswith("RL helped x: +20.0 points")
    two = alone | {"y": gain("y-sft", 0.2, 0.2, 0.9)}
    assert what_training_did(report({}, gains=two)) == (
        "It is not sure that RL changed x (+20.0 points, p = 0.030) and y (+0.0 points, p = 0.900)."
    )


def test_a_unified_model_alone_is_judged_by_its_own_gain():
    alone = {"unified": gain("unified-sft", 0.2, 0.4, 0.001, "mean")}
    assert what_training_did(report({"unified": {"a": 0.4}}, gains=alone)) == (
        "RL helped unified: +20.0 points, p = 0.001."
    )


def test_a_run_without_scores_has_no_outcome():
    assert outcome({}).headline == ""
