"""Presets, what a person lays over them, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
from pydantic import ValidationError

from engines.algorithms.advantages import Advantage, GroupAdvantage
from engines.algorithms.aggregation import ConstantMean, TokenMean
from engines.algorithms.combinations import describe, refusals, stale_doubts
from engines.algorithms.corrections import Band
from engines.algorithms.losses import CispoLoss, ClipLoss
from engines.algorithms.spec import PRESETS, Algorithm
from flows.checks import engines
from flows.checks.engines import algorithm_problems
from flows.checks.recipe_checks import cautions, check_recipe
from flows.checks.servers import determinism_problems, inexact
from flows.load import load_recipe
from flows.post_train import plan_post_train
from infra.errors import InputError
from infra.home import SOURCE_ROOT
from tasks.rl.spec import RlSettings
from tests.parts.recipe_parts import settings_of

pytestmark = pytest.mark.unit

UNWIRED = {"opd"}


def refused(group_size: int = 8, **written: object) -> list[str]:
    return list(refusals(Algorithm.model_validate(written), group_size))


def test_the_default_is_grpo() -> None:
    assert Algorithm(preset="grpo") == Algorithm()
    assert Algorithm().loss == ClipLoss(kind="clip", clip_low=0.2, clip_high=0.28)
    assert Algorithm().advantage == GroupAdvantage(kind="group", std=True)
    assert Algorithm().aggregation == TokenMean(kind="token_mean")


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_is_its_composition(preset: str) -> None:
    made = Algorithm.model_validate({"preset": preset})
    written = made.model_dump(mode="json")
    assert "preset" not in written
    assert Algorithm.model_validate(written) == made
    assert (len(refused(preset=preset)) > 0) == (preset in UNWIRED)


def test_presets_differ_from_each_other() -> None:
    said = {describe(Algorithm.model_validate({"preset": p})) for p in PRESETS}
    assert len(said) == len(PRESETS)


def test_two_spellings_of_one_algorithm_are_one() -> None:
    by_hand = Algorithm.model_validate(
        {
            "loss": {"kind": "gspo"},
            "aggregation": {"kind": "sequence_mean"},
            "old_logprobs": "trainer",
        }
    )
    assert by_hand.model_dump() == Algorithm(preset="gspo").model_dump()
    assert Algorithm(preset="gspo", loss="gspo") == by_hand


def test_what_a_person_writes_wins_over_the_preset() -> None:
    made = Algorithm.model_validate(
        {"preset": "dr-grpo", "loss": {"dual_clip": 3}, "aggregation": {"length": 9}}
    )
    assert made.loss == ClipLoss(kind="clip", clip_high=0.2, dual_clip=3)
    assert made.aggregation == ConstantMean(kind="constant", length=9)
    assert made.advantage == GroupAdvantage(kind="group", std=False)


@pytest.mark.parametrize("preset", PRESETS)
def test_what_is_null_is_as_the_preset_says(preset: str) -> None:
    nothing = dict.fromkeys(Algorithm.model_fields)
    assert Algorithm.model_validate({**nothing, "preset": preset}) == Algorithm(preset=preset)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ({"preset": "gspo", "loss": {"kind": "clip"}}, "loss is clip, but preset gspo has loss g"),
        ({"preset": "gspo", "loss": "clip"}, "leave `loss` out, or leave `preset` out and write"),
        ({"preset": "grpo", "advantage": "rloo"}, "advantage is rloo, but preset grpo has adva"),
        ({"preset": "dapo", "aggregation": "sequence_mean"}, "but preset dapo has aggregation t"),
        # a recipe on record has every part written
        ({**Algorithm(preset="gspo").model_dump(), "preset": "grpo"}, "loss is gspo, but preset"),
        ({**Algorithm(preset="rloo").model_dump(), "preset": "gspo"}, "advantage is rloo, but"),
    ],
)
def test_a_part_of_another_kind_than_the_presets_is_refused(
    written: dict[str, object], said: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        Algorithm.model_validate(written)
    assert said in str(caught.value)


def test_a_part_of_another_kind_needs_no_preset() -> None:
    assert Algorithm.model_validate({"loss": "cispo"}).loss == CispoLoss(kind="cispo")


def test_a_part_of_a_correction_can_be_taken_away() -> None:
    made = Algorithm.model_validate({"preset": "icepop", "correction": {"weight": None}})
    assert made.correction.weight is None
    assert made.correction.reject == [Band(kind="ratio", low=0.5, high=2)]


@pytest.mark.parametrize(
    "written",
    [
        {"preset": "grop"},
        {"preset": 3},
        {"preset": ["grpo"]},
        {"normalize_std": True},
        {"loss": "clap"},
        {"loss": {"cliphigh": 0.3}},
        {"loss": {"kind": "gspo", "dual_clip": 3}},
        {"loss": {"dual_clip": 1}},
        {"correction": {"weight": {"low": 2, "high": 1}}},
        {"correction": {"reject": [{"kind": "ratio", "low": 3}]}},
        {"aggregation": {"kind": "constant", "length": 0}},
    ],
)
def test_nonsense_is_refused_when_it_is_read(written: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Algorithm.model_validate(written)


def test_a_value_of_the_wrong_type_is_named_as_it_was_written() -> None:
    with pytest.raises(ValidationError) as caught:
        Algorithm.model_validate({"advantage": 5})
    assert [error["input"] for error in caught.value.errors()] == [5]
    with pytest.raises(ValidationError, match="valid dictionary or instance"):
        Algorithm.model_validate(["grpo"])


WEIGHT = {"correction": {"weight": {}}}


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ({"preset": "opd"}, "needs teachers, which `rl` does not have; use an `opd` stage"),
        ({"advantage": {"kind": "reinforce++", "whiten": False}}, "no baseline"),
        ({"preset": "sao", "advantage": {"lam": 0.5}}, "`lam` has no effect"),
        ({"advantage": {"whiten": True}}, "std and whiten"),
        ({"preset": "opd", "overlong": {}}, "overlong"),
        (WEIGHT, "set old_logprobs to trainer"),
        ({"correction": {"reject": [{"kind": "veto"}]}}, "set old_logprobs to trainer"),
        ({"preset": "dis", "old_logprobs": "trainer"}, "set it to engine"),
        ({"preset": "dis", **WEIGHT}, "count it twice"),
        ({"loss": "reinforce"}, "mini_batches"),
        ({"kl": {"place": "reward"}}, "coef is 0"),
        ({"kl": {"coef": 0.1, "place": "reward", "unbiased": True}}, "kl.unbiased"),
        ({"kl": {"coef": 0.1, "estimator": "k1"}}, "kl.estimator"),
        ({"kl": {"coef": 0.1, "estimator": "k2", "unbiased": True}}, "set estimator to k1 or k3"),
        ({"preset": "opd", "kl": {"coef": 0.1, "place": "reward"}}, "kl.place"),
        ({"loss": "dpo"}, "write `advantage: pairs` beside it, or start from `preset: online-dpo`"),
        ({"advantage": "pairs"}, "the loss clip compares none; write `loss: dpo` or `loss: ipo`"),
        ({"advantage": "pairs", "loss": "ipo"}, "write `aggregation: rollout_mean`"),
        ({"preset": "online-dpo", **WEIGHT}, "dpo compares whole rollouts and weighs no token"),
        ({"preset": "online-dpo", "old_logprobs": "trainer"}, "dpo has no ratio to an old policy"),
        ({"preset": "online-dpo", "kl": {"coef": 0.1}}, "raise `loss.beta`, and leave `kl` out"),
    ],
)
def test_what_does_not_go_together_is_refused_with_the_reason(
    written: dict[str, object], said: str
) -> None:
    assert any(said in line for line in refused(**written)), refused(**written)


@pytest.mark.parametrize(
    "written",
    [
        {},
        {"advantage": {"std": False, "whiten": True}},
        {**WEIGHT, "old_logprobs": "trainer"},
        {"correction": {"reject": [{"kind": "opsm"}]}},
        {"loss": "reinforce", "mini_batches": 1},
        {"kl": {"coef": 0.1}},
        {"kl": {"coef": 0.1, "estimator": "k1", "place": "reward"}},
        {"kl": {"coef": 0.1, "estimator": "k1", "unbiased": True}},
        {"kl": {"coef": 0.1, "estimator": "k2"}},
        {"kl": {"coef": 0.1, "unbiased": True}},
        {"preset": "online-dpo", "loss": {"beta": 0.3}, "overlong": {}, "truncated": "mask"},
        {"advantage": "pairs", "loss": "ipo", "aggregation": "rollout_mean", "mini_batches": 1},
    ],
)
def test_what_goes_together_is_not_refused(written: dict[str, object]) -> None:
    assert refused(**written) == []


@pytest.mark.parametrize("preset", ["grpo", "rloo", "reinforce++-baseline"])
def test_a_group_of_one_is_refused_where_a_group_is_compared(preset: str) -> None:
    assert any("group of one" in line for line in refused(1, preset=preset))
    assert refused(1, preset="reinforce++") == []
    assert refused(2, preset=preset) == []


def test_a_custom_advantage_says_whether_it_compares_a_group() -> None:
    mine = {"kind": "custom", "path": "mine:advantage"}
    (line,) = refused(1, advantage=mine)
    assert "or write `needs: []` beside its path if yours does not" in line
    assert refused(1, advantage={**mine, "needs": []}) == []
    with pytest.raises(ValidationError, match="'spread', 'batch', 'critic'"):
        refused(1, advantage={**mine, "needs": ["a critic"]})


@pytest.mark.parametrize(
    ("written", "needs"),
    [
        ({}, {"spread"}),
        ({"preset": "rloo"}, {"spread"}),
        ({"preset": "reinforce++"}, {"batch"}),
        ({"preset": "ppo"}, {"critic"}),
        ({"preset": "opd"}, {"teachers"}),
        ({"kl": {"coef": 0.1}}, {"spread", "reference"}),
        (
            {"advantage": {"kind": "custom", "path": "a:b", "needs": ["critic", "reference"]}},
            {"critic", "reference"},
        ),
    ],
)
def test_an_algorithm_needs_what_its_parts_declare(written, needs: set[str]) -> None:
    assert Algorithm.model_validate(written).needs == needs


def test_only_who_needs_a_critic_says_what_it_learns() -> None:
    for member in get_args(get_args(Advantage)[0]):
        (kind,) = get_args(member.model_fields["kind"].annotation)
        written = {"kind": kind, **({"path": "a:b"} if kind == "custom" else {})}
        target = Algorithm.model_validate({"advantage": written}).critic_target
        assert (target is not None) == (kind == "gae")
    custom = {"kind": "custom", "path": "a:b", "needs": ["critic"]}
    target = Algorithm.model_validate({"advantage": custom}).critic_target
    assert target is not None
    assert (target.gamma, target.critic_lam, target.skip_observations) == (1.0, 1.0, True)


def test_nobody_asks_which_estimator_it_is_to_know_what_it_needs() -> None:
    """Two classes of advantages are named beside their declarations: in the refusals of their own
    fields, and the one by which a custom function is found."""
    names = "|".join(m.__name__ for m in get_args(get_args(Advantage)[0]))
    found = {
        str(file.relative_to(SOURCE_ROOT))
        for package in ("flows", "tasks", "engines", "infra")
        for file in (SOURCE_ROOT / package).rglob("*.py")
        if re.search(rf"isinstance\([^)]*\b({names})\b", file.read_text())
    }
    assert found == {"engines/algorithms/combinations.py", "flows/checks/trial/request.py"}


@pytest.mark.parametrize(
    ("needs", "has_teachers", "said"),
    [
        (["teachers"], True, []),
        (["teachers"], False, ["custom needs teachers, which `rl` does not have"]),
        ([], True, ["write `needs: [teachers]` beside its path"]),
        (["teachers", "critic"], True, ["needs a critic, which `opd` does not have"]),
    ],
)
def test_teachers_are_where_an_advantage_needs_them(needs, has_teachers, said) -> None:
    written = {"kind": "custom", "path": "mine:advantage", "needs": needs}
    algorithm = Algorithm.model_validate({"advantage": written})
    found = list(refusals(algorithm, 2, has_teachers=has_teachers))
    assert len(found) == len(said)
    assert all(wanted in line for wanted, line in zip(said, found, strict=True))


def test_one_rollout_a_step_is_refused_where_the_batch_is_the_baseline() -> None:
    changes = ["group_size=1", "algorithm={preset: reinforce++}"]
    for problems, is_refused in ((1, True), (2, False)):
        recipe = load_recipe(
            "cpu-smoke",
            [f"unified.path.rl.{c}" for c in [*changes, f"problems_per_step={problems}"]],
        )
        found = [line for s in plan_post_train(recipe) for line in algorithm_problems(s)]
        assert any("which is only one rollout" in line for line in found) == is_refused


def test_check_names_the_stage_and_every_reason() -> None:
    recipe = load_recipe(
        "cpu-smoke",
        [
            "experts.agent.path.rl.algorithm={preset: opd}",
            "unified.path.rl.algorithm={correction: {weight: {}}}",
        ],
    )
    with pytest.raises(InputError) as caught:
        check_recipe(recipe, plan_post_train(recipe))
    said = str(caught.value)
    assert "stage agent-rl: algorithm.advantage: distillation needs teachers" in said
    assert "stage unified-rl: algorithm.correction: weighs" in said


@pytest.mark.parametrize("preset", PRESETS)
def test_of_the_presets_only_gspo_and_pairs_take_stale_data_for_fresh(preset: str) -> None:
    """The others take their ratio, or their correction, to what sampled."""
    said = list(stale_doubts(Algorithm.model_validate({"preset": preset})))
    assert len(said) == (preset in ("gspo", "online-dpo"))


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ({"old_logprobs": "trainer"}, "clip treats stale data as fresh: its ratio"),
        ({"old_logprobs": "trainer"}, "or `old_logprobs: engine`"),
        ({"preset": "gspo"}, "starts at 1 for data of any age; add `correction: {weight: {}}`"),
        ({"preset": "gspo", "old_logprobs": "engine"}, "gspo clips sequences beyond 0.0004 of"),
        ({"loss": "reinforce", "mini_batches": 1}, "treats stale data as fresh: it has no ratio"),
        ({"old_logprobs": "trainer", **WEIGHT}, None),
        ({"preset": "gspo", **WEIGHT}, None),
        ({"old_logprobs": "trainer", "correction": {"reject": [{"kind": "opsm"}]}}, None),
        ({"loss": "reinforce", "mini_batches": 1, "old_logprobs": "trainer", **WEIGHT}, None),
    ],
)
def test_what_stale_data_would_mislead_is_warned_of(
    written: dict[str, object], said: str | None
) -> None:
    found = list(stale_doubts(Algorithm.model_validate(written)))
    assert found == [] if said is None else any(said in line for line in found), found


def test_check_warns_of_stale_data_and_of_an_engine_that_the_gate_would_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "_PROCESSOR", tmp_path / "one that computes anything")

    def warned(*changes: str) -> list[str]:
        recipe = load_recipe("cpu-smoke", [f"unified.path.rl.{change}" for change in changes])
        return list(cautions(recipe, plan_post_train(recipe)))

    assert warned("max_staleness=16") == warned("algorithm={preset: gspo}") == []
    (stale,) = warned("max_staleness=4", "algorithm={preset: gspo}")
    assert stale.startswith("stage unified-rl: algorithm.loss: gspo treats stale data")
    (coarse,) = warned("fleet={sglang: {dtype: bfloat16}}")
    assert coarse.startswith("stage unified-rl: algorithm.agreement_gate: trainer and engine")
    assert warned("trainer={precision: bf16}") == [coarse]
    gate = "algorithm={agreement_gate: 0.05}"
    assert warned("fleet={sglang: {dtype: bfloat16}}", gate) == []
    assert warned("fleet={sglang: {dtype: float32}}") == []


def test_staleness_is_at_most_16_versions() -> None:
    with pytest.raises(InputError, match="max_staleness"):
        load_recipe("cpu-smoke", ["unified.path.rl.max_staleness=17"])


def test_a_coarser_engine_may_promise_exact_resumes_as_far_as_it_was_measured() -> None:
    for dtype, reasons in (("bfloat16", 0), ("float16", 1)):
        change = f"unified.path.rl.fleet={{sglang: {{dtype: {dtype}}}}}"
        recipe = load_recipe("cpu-smoke", [change])
        assert len(list(inexact(recipe, plan_post_train(recipe)))) == reasons


def test_a_mixture_of_experts_promises_exact_resumes() -> None:
    for determinism in ("auto", "exact"):
        changes = ["base.random.experts=4", f"determinism={determinism}"]
        recipe = load_recipe("cpu-smoke", changes)
        assert list(determinism_problems(recipe, plan_post_train(recipe))) == []


def test_sampling_beside_training_promises_no_exact_resumes() -> None:
    recipe = load_recipe("cpu-smoke", ["unified.path.rl.max_staleness=1"])
    (reason,) = inexact(recipe, plan_post_train(recipe))
    assert reason.startswith("stage unified-rl: with max_staleness above 0 the clock decides")


def test_requeueing_what_is_never_stale_is_a_mistake() -> None:
    recipe = load_recipe("cpu-smoke", ["unified.path.rl.on_stale=requeue"])
    with pytest.raises(
        InputError, match="on_stale: no rollout is ever too old where sampling and training take"
    ):
        check_recipe(recipe, plan_post_train(recipe))


def test_the_shipped_recipes_train_as_they_did() -> None:
    for name in ("cpu-demo", "cpu-smoke"):
        recipe = load_recipe(name)
        for key, expert in recipe.experts.items():
            wanted = Algorithm(mini_batches=2, advantage={"std": key != "agent"})
            assert settings_of(expert.path, RlSettings).algorithm == wanted
        assert recipe.unified is not None
        last = settings_of(recipe.unified.path, RlSettings)
        assert last.algorithm == Algorithm(mini_batches=2)


def test_a_wrong_field_of_a_part_is_named_as_it_was_written() -> None:
    with pytest.raises(InputError) as caught:
        load_recipe("cpu-demo", ["experts.agent.path.rl.algorithm.loss.cliphigh=1"])
    wanted = "agent.path.1.rl.algorithm.loss.cliphigh: unknown field; did you mean `clip_high`?"
    assert wanted in str(caught.value)
