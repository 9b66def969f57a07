"""How experts become one model: the operator in the plan, in checks, in reports; `opd`'s spec."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from engines.algorithms.spec import Algorithm
from flows.checks.recipe_checks import cautions, check_recipe, teacher_problems
from flows.file_places import place_files
from flows.load import load_recipe
from flows.plan import PlannedStage
from flows.post_train import plan_post_train
from flows.recipe import Recipe
from flows.reports.report import Report, notes
from infra.errors import InputError
from tasks.durable.stage_identity import spec_content
from tasks.opd.body import _as_rl, check_same_tokens
from tasks.opd.spec import OpdSettings, OpdSpec
from tests.parts.chat_parts import LLAMA, LLAMA_TOKENS, chat_folder, random_base
from tests.parts.recipe_parts import the_last, unified_path

pytestmark = pytest.mark.unit

EXPERTS = {"reasoning": "reasoning-rl", "agent": "agent-rl", "general": "general-rl"}
PATHS = {
    "sft": ("distill", "sft", "rl"),
    "opd": ("opd", "rl"),
    "sft+opd": ("distill", "sft", "opd", "rl"),
}


def recipe(operator: str, *changes: str) -> Recipe:
    return load_recipe("cpu-smoke", the_last(unified_path(*PATHS[operator]), *changes))


def plan(operator: str, *changes: str) -> dict[str, PlannedStage]:
    return {stage.name: stage for stage in plan_post_train(recipe(operator, *changes))}


@pytest.mark.parametrize("operator", PATHS)
def test_the_path_says_which_stages_unify(operator: str) -> None:
    planned = plan(operator)
    stages = [name for name in planned if name.startswith("unified")]
    assert stages == [f"unified-{kind}" for kind in PATHS[operator]]
    scored = {s.replace("-rl", "") for s in stages if s != "unified-distill"}
    home = planned["evaluate"].spec.model_dump()["home"]
    assert {name for name in home if name.startswith("unified")} == scored
    assert all(home[name] == list(EXPERTS) for name in scored)


def test_the_experts_teach_what_sft_left_or_the_base() -> None:
    both, alone = plan("sft+opd"), plan("opd")
    assert both["unified-opd"].inputs == {"model": "unified-sft", **EXPERTS}
    assert alone["unified-opd"].inputs == {"model": "base", **EXPERTS}
    assert both["unified-rl"].inputs == alone["unified-rl"].inputs == {"model": "unified-opd"}


def test_in_a_domain_whose_expert_does_not_teach_models_are_only_scored() -> None:
    planned = plan("sft+opd", "experts.general.teaches=false")
    assert "general-rl" in planned, "it is trained all the same"
    others = {name: stage for name, stage in EXPERTS.items() if name != "general"}
    assert planned["unified-distill"].inputs == others
    assert planned["unified-opd"].inputs == {"model": "unified-sft", **others}
    home = planned["evaluate"].spec.model_dump()["home"]
    assert home["unified"] == list(EXPERTS)
    none = [f"experts.{name}.teaches=false" for name in EXPERTS]
    with pytest.raises(InputError, match="no expert `teaches`"):
        recipe("sft", *none)


TAUGHT = "{opd: {steps: 1, optimizer: {lr: 0.1}, teachers: {agent: %s}}}"


def test_a_stage_or_a_folder_teaches_wherever_it_is_written() -> None:
    there = f"experts.agent.path.1={TAUGHT % 'base'}"
    within = {s.name: s for s in plan_post_train(load_recipe("cpu-smoke", [there]))}
    assert within["agent-opd"].inputs == {"model": "agent-sft", "agent": "base"}
    some = plan("sft+opd", "unified.path.opd.teachers={agent: agent-sft, general: /models/mine}")
    assert some["unified-opd"].inputs == {
        "model": "unified-sft", "reasoning": "reasoning-rl", "agent": "agent-sft",
        "general": "teacher-general",
    }  # fmt: skip
    assert some["teacher-general"].spec.imported_folder == "/models/mine"
    # The names of its teachers are no part of what a stage is: their weights are.
    assert spec_content(some["unified-opd"].spec) == spec_content(
        plan("sft+opd")["unified-opd"].spec
    )


def test_a_later_opd_learns_from_problems_that_none_before_it_had() -> None:
    opd = "{opd: {steps: 3, problems_per_step: 4, optimizer: {lr: 0.1}, teachers: {agent: base}}}"
    path = f"[{{sft: {{steps: 2, optimizer: {{lr: 1e-3}}}}}}, {opd}, opd]"
    loaded = load_recipe("cpu-smoke", [f"experts.agent.path={path}"])
    specs = [s.spec for s in plan_post_train(loaded) if isinstance(s.spec, OpdSpec)]
    assert [(spec.start, spec.most_problems) for spec in specs] == [(0, 12), (12, 12)]
    assert [_as_rl(spec).start for spec in specs] == [0, 12]


def test_a_served_teacher_is_a_role_of_the_stage_or_at_an_address() -> None:
    big = "{agent: {model: /models/big, role: big}, general: {url: 'http://10.0.0.2:30000',"
    big += " tokenizer: /models/mine}}"
    served = plan("sft+opd", f"unified.path.opd.served_teachers={big}")["unified-opd"]
    assert served.inputs == {
        "model": "unified-sft", "reasoning": "reasoning-rl", "role.big": "role-big",
    }  # fmt: skip
    assert list(served.roles) == ["big"]
    with pytest.raises(InputError, match=r"no stage before it makes it: name one of base"):
        plan("opd", "unified.path.opd.served_teachers={agent: {model: unified-rl}}")
    with pytest.raises(InputError, match=r"served_teachers\.agent\.model: unified-sft is the stu"):
        plan("sft+opd", "unified.path.opd.served_teachers={agent: {model: unified-sft}}")


def test_folders_of_teachers_are_seen_from_the_recipe(tmp_path: Path) -> None:
    served = {"c": {"url": "http://a:1", "tokenizer": "./t"}, "d": {"model": "base"}}
    opd = {"teachers": {"a": "./mine", "b": "a-sft"}, "served_teachers": served}
    place_files({"unified": {"path": [{"opd": opd}]}}, tmp_path, ())
    assert opd["teachers"] == {"a": str(tmp_path / "mine"), "b": "a-sft"}
    assert served == {
        "c": {"url": "http://a:1", "tokenizer": str(tmp_path / "t")}, "d": {"model": "base"},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("{}", "give exactly one of `model: STAGE-OR-FOLDER` and `url: ADDRESS`"),
        ("{url: 'http://a:1'}", "tokenizer: belongs to `url`"),
        ("{url: 'http://a:1', tokenizer: ./a, role: b}", "role and fleet: are of servers of"),
    ],
)
def test_how_a_served_teacher_is_written(written: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        plan("opd", f"unified.path.opd.served_teachers={{agent: {written}}}")


def test_the_other_stages_are_what_they_are_without_it() -> None:
    before, after = plan("sft"), plan("sft+opd")
    same = before.keys() - {"evaluate"}
    assert [before[n].spec for n in same] == [after[n].spec for n in same]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("unified.path.0=sft", r"unified\.path\.0\.sft: it has nothing to train on.*put `distill`"),
        ("unified.path.1=opd", r"unified\.path\.0\.distill: what follows does not learn from its"),
        (
            "experts.agent.path.1={opd: {steps: 1, optimizer: {lr: 0.1}}}",
            r"experts\.agent\.path\.1",
        ),
        (
            f"experts.agent.path.1={TAUGHT % 'agent-sft'}",
            r"agent\.path\.1\.opd\.teachers\.agent: agent-sft is the student itself",
        ),
        (
            f"experts.agent.path.1={TAUGHT % 'general-rl'}",
            r"teachers\.agent: no stage before it makes 'general-rl': name one of base,",
        ),
        (
            f"experts.agent.path.1={TAUGHT.replace('agent:', 'gent:') % 'base'}",
            r"teachers\.gent: its path has no such domain; it has agent",
        ),
    ],
)
def test_a_stage_that_lacks_what_it_needs_is_refused_by_its_place(change: str, said: str) -> None:
    written = {"sft": "{steps: 1, optimizer: {lr: 0.1}}", "opd": "{steps: 1, optimizer: {lr: 0.1}}"}
    field, _, kind = change.partition("=")
    change = f"{field}={{{kind}: {written[kind]}}}" if kind in written else change
    with pytest.raises(InputError, match=said):
        plan_post_train(load_recipe("cpu-smoke", [change]))


def test_only_opd_alone_from_a_random_base_is_warned_of() -> None:
    def warned(made: Recipe) -> list[str]:
        said = cautions(made, plan_post_train(made))
        return [line for line in said if "random" in line]

    assert [len(warned(recipe(how))) for how in ("sft", "opd", "sft+opd")] == [0, 1, 0]
    assert warned(recipe("opd", "base.random=null", "base.folder=/models/mine")) == []


OPD, RL = "unified.path.opd", "unified.path.rl"
SERVED = "steps: 1, optimizer: {lr: 0.1}, served_teachers: {agent: {model: base}}"
WHOLE = "{advantage: distillation, loss: divergence}"


@pytest.mark.parametrize(
    ("operator", "change", "said"),
    [
        ("sft+opd", f"{OPD}.algorithm={{preset: grpo}}", "unified-opd: algorithm.advantage: gr"),
        ("sft+opd", f"{RL}.algorithm={{preset: opd}}", "unified-rl: algorithm.advantage: disti"),
        ("opd", "resources.stages={unified-opd: {trainer: {dp: 9}}}", "needs 9 ranks"),
        ("opd", f"{OPD}.fleet.sglang={{nope: 1}}", "stage unified-opd: "),
        ("opd", f"{OPD}.trainer.megatron={{nope: 1}}", "stage unified-opd: "),
        ("sft+opd", f"{OPD}.fleet.sglang={{kv_cache_dtype: fp8_e5m2}}", "batch-invariant"),
        ("sft+opd", f"{OPD}={{{SERVED}, algorithm: {{preset: opd, temperature: 0.7}}}}", "at temp"),
        (
            "sft+opd",
            f"{OPD}={{{SERVED}, algorithm: {WHOLE}}}",
            "give logprobs of sampled tokens only",
        ),
        (
            "sft+opd",
            f"{OPD}.algorithm={{advantage: {{kind: distillation, clip: 2}}, loss: divergence}}",
            "unified-opd: algorithm.advantage: clip and whiten are of an estimate",
        ),
        ("sft", "resources.stages={unified-odp: {servers: 1}}", "did you mean `unified-opd`"),
    ],
)
def test_check_refuses(operator: str, change: str, said: str) -> None:
    changed = recipe(operator, change)
    with pytest.raises(InputError) as caught:
        check_recipe(changed, plan_post_train(changed))
    assert said in str(caught.value)


@pytest.mark.parametrize("operator", PATHS)
def test_check_accepts_each_path_whatever_stages_resources_name(operator: str) -> None:
    made = recipe(operator, "resources.stages.unified-opd={servers: 2}")
    check_recipe(made, plan_post_train(made))


@pytest.mark.parametrize("name", ["model", "base", "unified", "unified-sft", "evaluate"])
def test_an_expert_may_not_take_the_name_of_a_stage_or_an_input(name: str) -> None:
    expert = "{domain: {curriculum: {name: general}, rewards: [{name: constraints, outcome: true}]}"
    with pytest.raises(InputError, match=rf"experts\.{name}: the name would collide"):
        recipe("sft+opd", f"experts={{{name}: {expert}, path: []}}}}")


def test_two_stages_of_one_name_are_refused() -> None:
    """The middle version of `general` would be scored under the other expert's name."""
    made = load_recipe("cpu-smoke")
    general = made.experts["general"]
    long = general.model_copy(update={"path": [*general.path, general.path[1]]})
    odd = made.model_copy(update={"experts": {"general": long, "general-rl": general}})
    with pytest.raises(InputError, match=r"experts\.general-rl: the name would collide"):
        plan_post_train(odd)


def test_check_compares_a_teachers_folder_with_the_base(tmp_path: Path) -> None:
    base, teacher = random_base(tmp_path / "base"), random_base(tmp_path / "teacher")

    def problems(folder: Path) -> list[str]:
        teaches = f"unified.path.opd.teachers={{agent: {folder}}}"
        made = recipe("opd", "base.random=null", f"base.folder={base}", teaches)
        return list(teacher_problems(made, plan_post_train(made)))

    assert problems(teacher) == []
    tokenizer = Tokenizer.from_file(str(teacher / "tokenizer.json"))
    tokenizer.add_tokens(["<|more|>"])
    tokenizer.save(str(teacher / "tokenizer.json"))
    (said,) = problems(teacher)
    assert said.startswith(f"unified.path.0.opd.teachers.agent: {teacher} has another tokenizer")
    assert "token '<|more|>' is unknown to the student" in said
    (said,) = problems(random_base(tmp_path / "other", experts=4))
    assert "has another architecture (" in said
    assert "num_layers is 2 there and 1 here" in said
    with pytest.raises(InputError, match="is the student itself"):
        problems(base)


def test_a_teacher_with_other_positions_than_the_student_is_refused(tmp_path: Path) -> None:
    """The trainer that holds it has the student's rotary angles."""
    base, files = random_base(tmp_path / "base"), "data: {files: [/texts.jsonl]}"
    longer = f"{{steps: 1, optimizer: {{lr: 0.1}}, {files}, rope: {{positions: 1024, yarn: true}}}}"
    on = ("base.random=null", f"base.folder={base}", f"experts.agent.path=[mid_training: {longer}]")
    made = recipe("opd", *on)
    (said,) = teacher_problems(made, plan_post_train(made))
    assert said.startswith(
        "unified.path.0.opd: agent-mid_training, the teacher of agent, has another architecture ("
    )
    assert "max_positions is 1024 there and 512 here" in said
    # Named by itself it is a stage, and no folder.
    both = f"unified.path=[mid_training: {longer}, opd: {{steps: 1, optimizer: {{lr: 0.1}}, %s}}]"
    same = "teachers: {reasoning: agent-mid_training, general: agent-mid_training}"
    made = recipe("opd", *on, both % same)
    assert list(teacher_problems(made, plan_post_train(made))) == []


def test_a_step_trains_on_every_problem_that_it_asks_for() -> None:
    settings = OpdSettings.model_validate(
        {"steps": 3, "problems_per_step": 5, "group_size": 2, "optimizer": {"lr": 1e-4},
         "checkpoint_every": 7, "algorithm": {"preset": "opd", "mini_batches": 1}}
    )  # fmt: skip
    domain = recipe("sft").domains[0]
    made = _as_rl(OpdSpec(seed=4, settings=settings, domains=[domain]))
    shared = settings.model_dump(exclude={"teachers", "served_teachers"})
    assert {**made.settings.model_dump(), **shared} == made.settings.model_dump()
    assert (made.settings.oversample, made.settings.refill_rounds) == (1.0, 0)
    assert (made.seed, made.domains) == (4, [domain])


def test_without_an_algorithm_it_is_the_preset() -> None:
    written = OpdSettings.model_validate({"steps": 1, "optimizer": {"lr": 1e-4}})
    assert written.algorithm == Algorithm(preset="opd")
    assert OpdSettings.model_validate(written.model_dump()) == written


def test_the_report_says_what_each_stage_of_a_longer_path_did() -> None:
    scores = {
        "unified-sft": {"a": 0.5, "b": 0.7},
        "unified-opd": {"a": 0.75, "b": 0.75},
        "unified": {"a": 0.8, "b": 0.8},
    }
    versions = {"unified": list(scores)}
    report = Report(
        run="r", state="completed", seconds=1, stages=[], scores=scores, greedy={},
        versions=versions,
    )  # fmt: skip
    said = " ".join(notes(report, recipe("sft+opd")))
    steps = "unified-sft 0.600, unified-opd 0.750, unified 0.800."
    assert f"unified on its way, mean over domains: {steps}" in said
    without = report.model_copy(update={"versions": {"unified": ["unified-sft", "unified"]}})
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
