"""`fleet.quantization` is refused where servers or the algorithm cannot bear it."""

from __future__ import annotations

import pytest

from engines.sglang.spec import FleetSpec
from flows.checks.recipe_checks import cautions
from flows.checks.servers import determinism_problems, fp8_problems, served_problems
from flows.load import load_recipe
from flows.post_train import plan_post_train
from flows.recipe import Recipe
from infra.errors import InputError
from tests.unit.flows.checks.test_served_roles import judge

pytestmark = pytest.mark.unit

RL = "unified.path.rl"
FP8 = f"{RL}.fleet={{quantization: fp8-block}}"
WIDE = [
    f"base.random.{size}"
    for size in ("hidden_size=128", "ffn_size=256", "heads=4", "kv_heads=2", "head_dim=64")
]
ICEPOP = f"{RL}.algorithm={{preset: icepop, agreement_gate: 0.3}}"


def recipe(*changes: str) -> Recipe:
    return load_recipe("cpu-smoke", [FP8, *changes])


def problems(*changes: str) -> list[str]:
    made = recipe(*changes)
    return [line for stage in plan_post_train(made) for line in fp8_problems(made, stage)]


def test_a_model_of_whole_blocks_with_a_correction_is_taken() -> None:
    assert problems(*WIDE, ICEPOP) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ([ICEPOP], "FP8 needs a multiple of 128"),
        ([*WIDE, ICEPOP, "resources.stages.unified-rl.tp_per_server=2"], "(tp_per_server: 2)"),
        (WIDE, "no correction weighs them; write `algorithm: {old_logprobs: trainer, corr"),
        (
            [*WIDE, ICEPOP, "resources.devices={memory_gb: 80, per_host: 8}"],
            "on a GPU the other weights are bf16; set trainer.precision: bf16",
        ),
    ],
)
def test_what_cannot_be_in_fp8_is_refused(changes: list[str], said: str) -> None:
    (found,) = problems(*changes)
    assert found.startswith("stage unified-rl: fleet.quantization: fp8-block: ")
    assert said in found


@pytest.mark.parametrize(
    "algorithm",
    [
        "{old_logprobs: trainer, correction: {weight: {}}}",
        "{preset: icepop}",
        "{preset: dis}",
        "{preset: online-dpo}",
    ],
)
def test_algorithms_that_weigh_or_compare_no_probabilities_bear_it(algorithm: str) -> None:
    assert problems(*WIDE, f"{RL}.algorithm={algorithm}") == []


def test_a_gate_that_it_would_not_pass_is_warned_of() -> None:
    def warned(gate: float) -> list[str]:
        made = recipe(*WIDE, f"{RL}.algorithm={{preset: icepop, agreement_gate: {gate}}}")
        found = list(cautions(made, plan_post_train(made)))
        return [line for line in found if "agreement_gate" in line]

    (said,) = warned(0.05)
    assert said.endswith("above 0.05 the stage stops; set it to 0.3")
    assert warned(0.3) == []


def test_it_promises_no_exact_resumes() -> None:
    made = recipe(*WIDE, ICEPOP, "determinism=exact")
    (said,) = determinism_problems(made, plan_post_train(made))
    assert "unified-rl: fleet.quantization was not tested to be batch-invariant" in said


def test_servers_that_are_not_ours_and_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="those of `external` would not"):
        FleetSpec(quantization="fp8-block", external=("http://h:1",))
    with pytest.raises(InputError, match="fp8-block"):
        load_recipe("cpu-smoke", [f"{RL}.fleet={{quantization: fp8}}"])


def test_roles_get_no_weights_from_a_trainer() -> None:
    made = load_recipe("cpu-smoke", [judge("base", ", fleet: {quantization: fp8-block}")])
    found = list(served_problems(made, plan_post_train(made)))
    assert any("fleet.quantization: is for servers that a trainer gives" in each for each in found)
