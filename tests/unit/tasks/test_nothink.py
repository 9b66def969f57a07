"""Both modes in one RL stage: which problems are asked with thinking off, and what that gives."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from pydantic import ValidationError

from engines.rollout.consumer import StepResult
from engines.rollout.evaluator import Evaluator
from engines.rollout.metrics import step_metrics
from engines.rollout.producer import Sampled
from engines.rollout.tickets import TicketSource
from engines.types import Curriculum, Group, Problem, Split, Status, Transcript
from infra.errors import InputError
from tasks.distill.spec import DistillSettings
from tasks.domain import RewardTerm
from tasks.nothink import BothModes, curves_by_mode, held_out_of, in_both_modes
from tasks.rl.curve import score_points
from tasks.rl.spec import RlSettings, RlSpec
from tests.parts.rollout_parts import Counting, Policy, Verdict, domain, roller
from tests.parts.sample_parts import sample_of

pytestmark = pytest.mark.unit

SETTINGS: dict[str, Any] = {"steps": 3, "optimizer": {"lr": 1e-4}}


class Thinking(Counting):
    def problems(self, split: Split, count: int, seed: int, start: int = 0) -> list[Problem]:
        return [replace(p, thinking=True) for p in super().problems(split, count, seed, start)]


@dataclass
class Template:
    has_switch: bool = True

    def require_thinking_switch(self) -> None:
        if not self.has_switch:
            raise InputError("nothink_share needs a chat template")


TEMPLATE: Any = Template()
LLAMA: Any = Template(has_switch=False)


def off(share: float, count: int, seed: int = 0, start: int = 0) -> list[bool]:
    both = BothModes(Thinking("a"), "rl", share, "a")
    return [p.thinking is False for p in both.problems("rl", count, seed, start)]


@pytest.mark.parametrize(
    ("share", "block", "counts"),
    [(0.5, 2, [1, 1, 1]), (0.25, 4, [1, 1, 1]), (0.75, 4, [3, 3, 3]), (0.3, 3, [0, 1, 1, 1, 1])],
)
def test_of_every_few_problems_in_a_row_the_share_is_exact(
    share: float, block: int, counts: list[int]
) -> None:
    """0.3 of 3, 6, 9, 12 and 15 problems are 0.9, 1.8, 2.7, 3.6 and 4.5: 0, 1, 2, 3 and 4 whole."""
    found = off(share, block * len(counts))
    assert [sum(found[n : n + block]) for n in range(0, len(found), block)] == counts
    assert sum(off(share, 1200)) == round(1200 * share)


def test_the_draw_hangs_on_seed_and_position_alone() -> None:
    assert off(0.5, 40)[13:20] == off(0.5, 7, start=13), "a ticket that is drawn again"
    assert off(0.5, 40) != off(0.5, 40, seed=1)
    pairs = {tuple(off(0.5, 40)[n : n + 2]) for n in range(0, 40, 2)}
    assert len(pairs) == 2, "a curriculum with a period of two has both of its kinds in both modes"


def test_only_rl_problems_that_think_are_changed() -> None:
    both = BothModes(Thinking("a"), "rl", 0.5, "a")
    assert all(p.thinking for p in both.problems("heldout", 8, 0))
    distilled = BothModes(Thinking("a"), "distill", 0.5, "a")
    assert all(p.thinking for p in distilled.problems("rl", 8, 0))
    assert sum(p.thinking is False for p in distilled.problems("distill", 8, 0)) == 4
    silent = BothModes(Counting("a"), "rl", 0.5, "a").problems("rl", 8, 0)
    assert {p.thinking for p in silent} == {None}


def test_a_ticket_has_one_mode_for_all_of_its_group() -> None:
    """Two domains take turns: each has its own share of a step's six tickets."""
    domains = [replace(domain(n, float), curriculum=Thinking(n)) for n in ("a", "b")]
    made = in_both_modes({"a": 0.5, "b": 0.0}, "rl", 0, TEMPLATE, domains)
    source = TicketSource(made, split="rl", seed=0)
    drawn = source.draw(12)
    thinks = {n: [t.problem.thinking for t in drawn if t.domain.name == n] for n in ("a", "b")}
    assert thinks["a"].count(False) == 3
    assert thinks["b"] == [True] * 6
    assert [source.again(t.number).problem for t in drawn] == [t.problem for t in drawn]
    assert curves_by_mode(made) == ["outcome_mean_a-thinking", "outcome_mean_a-nothink"]


@pytest.mark.parametrize(
    ("share", "curriculum", "has_switch", "said"),
    [
        (0.5, Thinking("a"), False, "nothink_share needs a chat template"),
        ({"a": 0.5}, Counting("a"), True, "nothink_share.a: no problem of a asks for a thought"),
        (0.5, Counting("a"), True, "nothink_share: no problem of the domains asks for a thought"),
    ],
)
def test_what_cannot_be_in_both_modes_is_refused(
    share: Any, curriculum: Curriculum, has_switch: bool, said: str
) -> None:
    only: Any = [replace(domain("a", float), curriculum=curriculum)]
    with pytest.raises(InputError, match=said):
        in_both_modes(share, "rl", 0, TEMPLATE if has_switch else LLAMA, only)
    assert in_both_modes(0.0, "rl", 0, LLAMA, only) == only


@pytest.mark.parametrize("share", [1, "both", True, {"a": 1.0}, {}, -0.1, 1e-7, 0.9999999])
def test_another_form_of_a_share_is_refused(share: Any) -> None:
    with pytest.raises(ValidationError, match=r"one share \(0, or from 0.001 to 0.999\), or"):
        RlSettings.model_validate({**SETTINGS, "nothink_share": share})
    with pytest.raises(ValidationError, match=r"one share \(0, or from 0.001 to 0.999\), or"):
        DistillSettings.model_validate({"nothink_share": share})


def test_a_stage_without_both_modes_has_the_digest_it_had() -> None:
    assert "nothink_share" not in RlSettings.model_validate(SETTINGS).model_dump()
    with pytest.raises(ValidationError, match="trains both modes write `nothink_share: 0"):
        RlSettings.model_validate({**SETTINGS, "thinking": "both"})


@pytest.mark.parametrize(
    ("algorithm", "names", "share", "said"),
    [
        ({"preset": "grpo"}, ["a"], {"a": 0.5}, []),
        ({"preset": "ppo", "advantage": {"kind": "gae", "whiten": False}}, ["a"], 0.5, []),
        ({"preset": "ppo"}, ["a"], 0.5, ["advantage gae takes the mean of the whole step away"]),
        (
            {"advantage": {"kind": "reinforce++"}}, ["a"], 0.5,
            ["advantage reinforce++ takes the mean of the whole step away"],
        ),
        (
            {"advantage": {"kind": "opo", "whiten": True}}, ["a"], 0.5,
            ["advantage opo takes the mean of the whole step away"],
        ),
        ({}, ["a"], {"b": 0.5}, ["nothink_share.b: the stage has no such domain; name a"]),
        ({}, ["a", "a-nothink"], {"a": 0.5}, ["scores of a with thinking off are called a-noth"]),
    ],
)  # fmt: skip
def test_no_baseline_and_no_name_is_shared_by_two_modes(
    algorithm: dict[str, Any], names: list[str], share: Any, said: list[str]
) -> None:
    own = {"curriculum": {"name": "reasoning"}, "rewards": [{"name": "math", "outcome": True}]}
    spec = RlSpec.model_validate(
        {
            "settings": {**SETTINGS, "nothink_share": share, "algorithm": algorithm},
            "domains": [{"name": name, **own} for name in names],
        }
    )
    found = list(spec.problems())
    assert len(found) == len(said)
    assert all(part in line for part, line in zip(said, found, strict=True))


def group(name: str, thinking: bool | None, *outcomes: float) -> Group:
    end = Status.COMPLETED
    samples = [
        sample_of("p", name, "g", f"{n}", n, [7], [1], [-0.1], [0], end, each, {"outcome": each})
        for n, each in enumerate(outcomes)
    ]
    return Group(Problem("p", name, (), thinking=thinking), samples)


def test_outcomes_of_a_step_by_domain_and_mode_by_hand() -> None:
    groups = [group("a", True, 1, 1), group("a", True, 1, 0), group("a", False, 0, 0.5)]

    def shown(groups: list[Group]) -> dict[str, float]:
        sampled = Sampled(groups, groups, waves=1, seconds=0.5)
        metrics = step_metrics(StepResult(1, 1, sampled, groups, 1, {}, train_seconds=0.25))
        return {k.removeprefix("outcome_mean"): v for k, v in metrics.items() if "outcome" in k}

    assert shown(groups) == {"": 3.5 / 6, "_a-thinking": 0.75, "_a-nothink": 0.25}
    assert shown(groups[:2]) == {"": 0.75}
    assert shown([*groups, group("b", None, 1)]) == {
        "": 4.5 / 7, "_a": 3.5 / 6, "_b": 1.0, "_a-thinking": 0.75, "_a-nothink": 0.25,
    }  # fmt: skip


@pytest.mark.parametrize("field", [{"thinking": False}, {"only_right": True}])
def test_an_outcome_judges_every_rollout(field: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="the outcome judges every rollout"):
        RewardTerm.model_validate({"name": "math", "outcome": True, **field})
    with pytest.raises(ValidationError, match="a reward of whole groups judges every rollout"):
        RewardTerm.model_validate({"name": "own:rank", "group": True, **field})
    dumped = RewardTerm(name="math", outcome=True).model_dump()
    assert field.keys().isdisjoint(dumped), "so that digests stay"


class ThoughtIsRight:
    async def judge(self, transcript: Transcript) -> Verdict:
        return Verdict(0.0, {"outcome": float(transcript.problem.thinking is True)})


async def test_held_out_problems_are_scored_in_both_modes() -> None:
    plain = replace(domain("a", float), curriculum=Thinking("a"), judge=ThoughtIsRight())
    held_out = held_out_of(in_both_modes(0.5, "rl", 0, TEMPLATE, [plain]), 3, 0)
    policy = Policy(lambda prompt, sampling: "1")
    evaluator = Evaluator(roller=roller(policy), held_out=held_out, samples=2, timeout_s=5.0)
    evaluator.begin(0, 0)
    points = score_points(await evaluator.finish())
    assert {name: (p.outcome, p.problems) for name, p in points.items()} == {
        "a": (1.0, 3), "a-nothink": (0.0, 3),
    }  # fmt: skip
    assert [each.name for each in held_out_of([plain], 3, 0)] == ["a"]
