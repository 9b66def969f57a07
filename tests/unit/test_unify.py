"""How experts become one model: the operator in the plan, in checks, in reports; `opd`'s spec."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from engines.algorithms.spec import Algorithm
from flows.checks.recipe import cautions, check_recipe
from flows.load import load_recipe
from flows.plan import PlannedStage, plan_post_train
from flows.recipe import Recipe
from flows.reports.report import Report, notes
from infra.errors import InputError
from tasks.opd.body import _as_rl, check_same_tokens
from tasks.opd.spec import OpdSettings, OpdSpec
from tests.chat_parts import LLAMA, LLAMA_TOKENS, chat_folder

pytestmark = pytest.mark.unit

EXPERTS = {"reasoning": "reasoning-rl", "agent": "agent-rl", "general": "general-rl"}
OPD = "unified.opd={steps: 2, optimizer: {lr: 1e-4}}"


def recipe(operator: str, *changes: str) -> Recipe:
    return load_recipe("cpu-smoke", [f"unify={operator}", OPD, *changes])


def plan(operator: str, *changes: str) -> dict[str, PlannedStage]:
    return {stage.name: stage for stage in plan_post_train(recipe(operator, *changes))}


@pytest.mark.parametrize(
    ("operator", "stages"),
    [
        ("sft", ["distill", "unified-sft", "unified-rl"]),
        ("opd", ["unified-opd", "unified-rl"]),
        ("sft+opd", ["distill", "unified-sft", "unified-opd", "unified-rl"]),
    ],
)
def test_the_operator_says_which_stages_unify(operator: str, stages: list[str]) -> None:
    planned = plan(operator)
    assert [name for name in planned if name.startswith(("unified", "distill"))] == stages
    scored = {s.replace("-rl", "") for s in stages if s != "distill"}
    home = planned["evaluate"].spec.model_dump()["home"]
    assert {name for name in home if name.startswith("unified")} == scored
    assert all(home[name] == list(EXPERTS) for name in scored)


def test_the_experts_teach_what_sft_left_or_the_base() -> None:
    both, alone = plan("sft+opd"), plan("opd")
    assert both["unified-opd"].inputs == {"model": "unified-sft", **EXPERTS}
    assert alone["unified-opd"].inputs == {"model": "base", **EXPERTS}
    assert both["unified-rl"].inputs == alone["unified-rl"].inputs == {"model": "unified-opd"}


def test_the_other_stages_are_what_they_are_without_it() -> None:
    before, after = plan("sft"), plan("sft+opd")
    same = before.keys() - {"evaluate"}
    assert [before[n].spec for n in same] == [after[n].spec for n in same]


@pytest.mark.parametrize(
    ("operator", "part"), [("sft", "sft"), ("opd", "opd"), ("sft+opd", "sft"), ("sft+opd", "opd")]
)
def test_an_operator_without_its_settings_is_refused(operator: str, part: str) -> None:
    with pytest.raises(InputError, match=rf"unify: .* needs `unified\.{part}`"):
        recipe(operator, f"unified.{part}=null")
    other = {"sft": "opd", "opd": "sft"}[part]
    if operator == part:
        recipe(operator, f"unified.{other}=null")


def test_only_opd_alone_from_a_random_base_is_warned_of() -> None:
    def warned(made: Recipe) -> list[str]:
        return list(cautions(made, plan_post_train(made)))

    assert [len(warned(recipe(how))) for how in ("sft", "opd", "sft+opd")] == [0, 1, 0]
    assert warned(recipe("opd", "base.random=null", "base.folder=/models/mine")) == []


@pytest.mark.parametrize(
    ("operator", "change", "said"),
    [
        ("sft+opd", "unified.opd.algorithm={preset: grpo}", "unified-opd: algorithm.advantage: gr"),
        ("sft+opd", "unified.rl.algorithm={preset: opd}", "unified-rl: algorithm.advantage: disti"),
        ("opd", "resources.stages={unified-opd: {trainer: {dp: 9}}}", "needs 9 ranks"),
        ("opd", "unified.opd.fleet.sglang={nope: 1}", "stage unified-opd: "),
        ("opd", "unified.opd.trainer.megatron={nope: 1}", "stage unified-opd: "),
        ("sft+opd", "unified.opd.fleet.sglang={kv_cache_dtype: fp8_e5m2}", "batch-invariant"),
        ("sft", "resources.stages={unified-odp: {servers: 1}}", "did you mean `unified-opd`"),
    ],
)
def test_check_refuses(operator: str, change: str, said: str) -> None:
    changed = recipe(operator, change)
    with pytest.raises(InputError) as caught:
        check_recipe(changed, plan_post_train(changed))
    assert said in str(caught.value)


@pytest.mark.parametrize("operator", ["sft", "opd", "sft+opd"])
def test_check_accepts_each_operator_whatever_stages_the_others_name(operator: str) -> None:
    made = recipe(operator, "resources.stages.unified-opd={servers: 2}")
    check_recipe(made, plan_post_train(made))


def test_an_expert_may_not_take_the_students_name() -> None:
    made = recipe("sft+opd", "experts={model: {domain: {curriculum: {name: general}, rewards: "
                  "[{name: constraints, outcome: true}]}, sft: {steps: 1, optimizer: {lr: 1}}, "
                  "rl: {steps: 1, optimizer: {lr: 1}}}}")  # fmt: skip
    with pytest.raises(InputError, match=r"experts\.model: the name would collide"):
        check_recipe(made, plan_post_train(made))


def test_a_step_trains_on_every_problem_that_it_asks_for() -> None:
    settings = OpdSettings.model_validate(
        {"steps": 3, "problems_per_step": 5, "group_size": 2, "optimizer": {"lr": 1e-4},
         "checkpoint_every": 7, "algorithm": {"preset": "opd", "mini_batches": 1}}
    )  # fmt: skip
    domain = recipe("sft").domains[0]
    made = _as_rl(OpdSpec(seed=4, settings=settings, domains=[domain]))
    assert {**made.settings.model_dump(), **settings.model_dump()} == made.settings.model_dump()
    assert (made.settings.oversample, made.settings.refill_rounds) == (1.0, 0)
    assert (made.seed, made.domains) == (4, [domain])


def test_without_an_algorithm_it_is_the_preset() -> None:
    written = OpdSettings.model_validate({"steps": 1, "optimizer": {"lr": 1e-4}})
    assert written.algorithm == Algorithm(preset="opd")
    assert OpdSettings.model_validate(written.model_dump()) == written


def test_the_report_says_what_each_part_did() -> None:
    scores = {"unified-sft": {"a": 0.5, "b": 0.7}, "unified-opd": {"a": 0.75, "b": 0.75}}
    report = Report(run="r", state="completed", seconds=1, stages=[], scores=scores, greedy={})
    said = " ".join(notes(report, recipe("sft+opd")))
    assert "on its way, mean over domains: unified-sft 0.600, unified-opd 0.750." in said
    without = report.model_copy(update={"scores": {"unified-sft": {"a": 0.5}}})
    assert not any("on its way" in line for line in notes(without, recipe("sft")))


def test_a_teacher_must_read_the_students_tokens_as_the_student_does(tmp_path: Path) -> None:
    student = chat_folder(tmp_path / "student", LLAMA, LLAMA_TOKENS, "<|eot|>")
    twin = chat_folder(tmp_path / "twin", LLAMA, LLAMA_TOKENS, "<|eot|>")
    check_same_tokens(student, {"agent": twin})
    swapped = ["<|begin|>", "<|end|>", "<|start|>", "<|eot|>"]
    other = chat_folder(tmp_path / "other", LLAMA, swapped, "<|eot|>")
    with pytest.raises(
        InputError, match=r"teacher of agent .*token '<\|start\|>' is 257 to the st"
    ):
        check_same_tokens(student, {"general": twin, "agent": other})
    more = chat_folder(tmp_path / "more", LLAMA, LLAMA_TOKENS, "<|eot|>")
    tokenizer = Tokenizer.from_file(str(more / "tokenizer.json"))
    tokenizer.add_tokens(["<|more|>"])
    tokenizer.save(str(more / "tokenizer.json"))
    with pytest.raises(
        InputError, match=r"'<\|more\|>' is unknown to the student and 264 to the t"
    ):
        check_same_tokens(student, {"agent": more})
    asks = LLAMA.replace("\\n\\n", "\\n")
    template = chat_folder(tmp_path / "template", asks, LLAMA_TOKENS, "<|eot|>")
    with pytest.raises(InputError, match="another chat template"):
        check_same_tokens(student, {"agent": template})
