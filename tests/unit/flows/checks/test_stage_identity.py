"""Which stages of a recipe run again after an edit: of its settings, of our code, of a hook."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import chdir
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.load import load_recipe
from flows.plan import PlannedStage
from flows.post_train import plan_post_train
from flows.reasons import planned_identities
from infra.code.definitions import ALL as WHOLE_MODULE
from infra.code.identity import LookedUp
from infra.errors import InputError
from infra.home import SOURCE_ROOT
from infra.user_files import data_path, install_hooks, read_hooks
from tasks.durable.stage_identity import stage_code
from tests.parts.edited_code import change_functions, edited, forget_installed, without
from tests.parts.recipe_parts import unified_path

pytestmark = pytest.mark.unit

ALL = {
    "base", "reasoning-sft", "reasoning-rl", "agent-sft", "agent-rl", "general-sft", "general-rl",
    "unified-distill", "unified-sft", "unified-opd", "unified-rl", "evaluate",
}  # fmt: skip
UNIFIED = {"unified-distill", "unified-sft", "unified-opd", "unified-rl", "evaluate"}


@cache
def looked_up_of(root: Path) -> LookedUp:
    """Our own code stays as it is while settings and hooks change."""
    return LookedUp()


def digests(
    *changes: str, root: Path = SOURCE_ROOT, recipe: str = "cpu-demo", edited: str = ""
) -> dict[str, str]:
    loaded = load_recipe(recipe, [*changes])
    user = install_hooks(read_hooks(loaded.hooks, loaded.data))
    looked_up = looked_up_of(root)
    known = without(looked_up, edited) if edited else looked_up
    found = planned_identities(plan_post_train(loaded), user, root=root, looked_up=known)
    return {name: identity.digest for name, identity in found.items()}


@cache
def unchanged(root: Path) -> dict[str, str]:
    return digests(OPD, root=root)


def rerun(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {name for name in before if before[name] != after[name]}


OPD = unified_path("distill", "sft", "opd", "rl")
RL = "experts.general.path.rl"
DOMAIN = "experts.general.domain"


@pytest.mark.parametrize(
    ("change", "again"),
    [
        (f"{DOMAIN}.rewards.1.weight=0.3", {"general-rl"} | UNIFIED),
        (f"{DOMAIN}.max_new_tokens=40", {"general-rl"} | UNIFIED),
        (f"{DOMAIN}.curriculum.options.noise=0.2", ALL),
        ("experts.general.path.sft.steps=501", {"general-sft", "general-rl"} | UNIFIED),
        (f"{RL}.optimizer.lr=1e-4", {"general-rl"} | UNIFIED),
        ("unified.path.distill.problems=3000", UNIFIED),
        ("unified.path.opd.steps=25", {"unified-opd", "unified-rl", "evaluate"}),
        ("evaluate.samples=3", {"evaluate"}),
        ("seed=1", ALL),
    ],
)
def test_a_setting_runs_again_what_reads_it(change: str, again: set[str]) -> None:
    assert rerun(unchanged(SOURCE_ROOT), digests(OPD, change)) == again


def test_settings_on_which_nothing_of_a_result_hangs_run_nothing_again() -> None:
    changes = [
        "experts.general.path.sft.checkpoint_every=7", "unified.path.opd.checkpoint_every=7",
        f"{RL}.checkpoint_every=7", f"{RL}.trainer.micro_batch_tokens=1024",
        f"{RL}.trainer.megatron.recompute_granularity=selective",
        f"{RL}.fleet.max_total_tokens=9000", f"{RL}.fleet.external=[http://10.0.0.2:30000]",
        f"{RL}.fleet.sglang.log_level=info", "unified.path.sft.demonstrations=7",
        "resources.default.weights={transport: disk_delta, url: s3://bucket/weights}",
        "resources.concurrent_stages=1", "name=another",
    ]  # fmt: skip
    assert rerun(unchanged(SOURCE_ROOT), digests(OPD, *changes)) == set()


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of our code, without its history."""
    copy = tmp_path_factory.mktemp("tree")
    for package in ("flows", "tasks", "engines", "rewards", "curricula", "infra"):
        skipped = shutil.ignore_patterns("__pycache__")
        shutil.copytree(SOURCE_ROOT / package, copy / package, ignore=skipped)
    (copy / "README.md").write_text("")
    return copy


@pytest.fixture(scope="module")
def known(tree: Path) -> tuple[LookedUp, dict[str, str]]:
    """What is found out of the copy before an edit, and the digests."""
    looked_up = LookedUp()
    return looked_up, planned(tree, looked_up)


@cache
def planned_stages(*changes: str) -> Sequence[PlannedStage]:
    return plan_post_train(load_recipe("cpu-demo", [OPD, *changes]))


def planned(root: Path, looked_up: LookedUp, *changes: str) -> dict[str, str]:
    found = planned_identities(planned_stages(*changes), root=root, looked_up=looked_up)
    return {name: identity.digest for name, identity in found.items()}


@pytest.mark.parametrize(("stage", "most"), [("base", 60), ("reasoning-sft", 118)])
def test_a_stage_depends_on_few_of_our_files(stage: str, most: int) -> None:
    planned = {s.name: s for s in plan_post_train(load_recipe("cpu-demo"))}
    files = stage_code(planned[stage].spec).files
    assert len(files) <= most, sorted(files)


EXPERTS_RL = {"reasoning-rl", "agent-rl", "general-rl"}
OPD_AND_LATER = {"unified-opd", "unified-rl", "evaluate"}
SFT = {"reasoning-sft", "agent-sft", "general-sft", "unified-sft"}


@pytest.mark.parametrize(
    ("edit", "again"),
    [
        ("README.md", set()),
        ("flows/plan.py", set()),
        ("tasks/evaluate/body.py", {"evaluate"}),
        ("tasks/base/random_model.py", ALL),
        ("tasks/base/import_folder.py", set()),
        ("tasks/sft/sft_data.py", ALL - {"base"}),
        ("tasks/rl/body.py", EXPERTS_RL | UNIFIED),
        # one estimator
        ("engines/algorithms/advantages.py:grpo_advantages", EXPERTS_RL | UNIFIED),
        ("engines/algorithms/statistics.py:group_advantages", EXPERTS_RL | UNIFIED),
        ("engines/algorithms/losses.py:clip_loss", EXPERTS_RL | UNIFIED),
        ("engines/algorithms/statistics.py:leave_one_out_advantages", set()),
        ("engines/algorithms/statistics.py:gae", set()),
        ("engines/algorithms/advantages.py:gae_advantages", set()),
        ("engines/algorithms/advantages.py:critic_targets", set()),
        ("engines/algorithms/losses.py:cispo_loss", set()),
        ("engines/algorithms/losses.py:value_loss", set()),
        ("engines/algorithms/losses.py:kl_estimate", set()),
        ("engines/algorithms/losses.py:unbiased_kl", set()),
        ("engines/algorithms/losses.py:overlong_penalty", set()),
        ("engines/algorithms/corrections.py:off_policy_sequences", set()),
        ("engines/algorithms/advantages.py:distillation_advantages", OPD_AND_LATER),
        ("engines/algorithms/corrections.py:corrected", OPD_AND_LATER),
        # one reward, one curriculum
        ("rewards/math.py", {"reasoning-rl"} | UNIFIED),
        # `math` uses its check of a reply's form
        ("rewards/text.py:format_fault", {"reasoning-rl"} | UNIFIED),
        ("rewards/text.py:Repetition", {"general-rl"} | UNIFIED),
        ("rewards/text.py:Length", set()),
        ("rewards/library_score.py", set()),
        ("curricula/library_tasks.py", set()),
        ("curricula/general.py", ALL),
        # engines
        ("engines/megatron/rl/trainer.py", EXPERTS_RL | UNIFIED),
        ("engines/megatron/train/value_trainers.py", set()),
        ("engines/sglang/client.py", EXPERTS_RL | UNIFIED),
        ("engines/megatron/train/optimizer.py", ALL - {"base"}),
        # one model family
        ("engines/families/qwen3.py", ALL),
        ("engines/families/llama.py", set()),
        ("engines/families/common/dense.py", ALL),
    ],
)
def test_an_edit_of_our_code_runs_again_what_uses_it(
    tree: Path, known: tuple[LookedUp, dict[str, str]], edit: str, again: set[str]
) -> None:
    looked_up, before = known
    file, _, name = edit.partition(":")
    with edited(tree / file):
        if file.endswith(".py"):
            change_functions(tree / file, name)
        assert rerun(before, planned(tree, without(looked_up, file))) == again


@pytest.mark.parametrize(
    ("file", "added"),
    [
        ("engines/algorithms/losses.py", "class New(PartWithCode):\n    code = 'a:b'"),
        ("engines/algorithms/losses.py", "Loss = Annotated[ClipLoss | New, 1]"),
        ("rewards/built_in_rewards.py", "MORE = {'new': 'rewards.new:New'}"),
        ("tasks/domain.py", "class New(HookSpec):\n    new: int = 1"),
        ("tasks/rl/body.py", "# A comment.\n\n\ndef neighbour(): return 1"),
        ("tasks/rl/body.py", "'A text.'"),
    ],
)
def test_what_is_added_beside_runs_nothing_again(
    tree: Path, known: tuple[LookedUp, dict[str, str]], file: str, added: str
) -> None:
    looked_up, before = known
    with edited(tree / file, f"\n{added}\n"):
        assert rerun(before, planned(tree, without(looked_up, file))) == set()


def test_an_estimator_counts_where_the_algorithm_names_it(
    tree: Path, known: tuple[LookedUp, dict[str, str]]
) -> None:
    preset = "experts.general.path.rl.algorithm={preset: rloo}"
    looked_up, _ = known
    before = planned(tree, looked_up, preset)
    file = "engines/algorithms/statistics.py"
    with edited(tree / file):
        change_functions(tree / file, "leave_one_out_advantages")
        changed = rerun(before, planned(tree, without(looked_up, file), preset))
    assert changed == {"general-rl"} | UNIFIED


@pytest.mark.parametrize(
    ("algorithm", "edit"),
    [
        ("{preset: ppo}", "engines/algorithms/advantages.py:critic_targets"),
        ("{kl: {coef: 0.1, unbiased: true}}", "engines/algorithms/losses.py:unbiased_kl"),
    ],
)
def test_what_a_part_names_beside_its_function_counts(
    tree: Path, known: tuple[LookedUp, dict[str, str]], algorithm: str, edit: str
) -> None:
    looked_up, _ = known
    changes = ["experts.general.path.rl.algorithm=" + algorithm]
    before = planned(tree, looked_up, *changes)
    file, _, name = edit.partition(":")
    with edited(tree / file):
        change_functions(tree / file, name)
        changed = rerun(before, planned(tree, without(looked_up, file), *changes))
    assert changed == {"general-rl"} | UNIFIED


def test_an_imported_models_family_counts_and_no_other(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    imported = f"base={{folder: '{tmp_path}'}}"
    before = digests(imported, root=tree)
    for family, again in (("llama", ALL - {"unified-opd"}), ("qwen3", set[str]())):
        file = f"engines/families/{family}.py"
        with edited(tree / file, "\nprint()\n"):
            assert rerun(before, digests(imported, root=tree, edited=file)) == again
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    assert rerun(before, digests(imported, root=tree)) == ALL - {"unified-opd"}


# Hooks


REWARD = '''
"""A reward."""
import helper
from engines.types import Transcript, Verdict

async def short(transcript: Transcript, weight=1) -> Verdict:
    return Verdict(helper.score(transcript))
'''


@pytest.fixture
def hooked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a recipe whose general expert has a reward of its own."""
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path / "home"))
    folder = tmp_path / "mine"
    (folder / "pkg" / "a").mkdir(parents=True)
    (folder / "pkg" / "b").mkdir()
    files = {
        "reward.py": REWARD,
        "helper.py": "from pkg.a import cfg\ndef score(t): return cfg.VALUE\n",
        "unused.py": "X = 1\n",
        "pkg/__init__.py": "",
        "pkg/words.txt": "ant\n",
        "pkg/a/__init__.py": "",
        "pkg/b/__init__.py": "",
        "pkg/a/cfg.py": "VALUE = 1.0\n",
        "pkg/b/cfg.py": "VALUE = 0.0\n",
        "list.txt": "bee\n",
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    recipe: dict[str, Any] = yaml.safe_load(
        (SOURCE_ROOT / "flows/recipes/cpu-demo.yaml").read_text()
    )
    recipe["hooks"] = ["reward.py", "helper.py", "unused.py", "pkg"]
    recipe["experts"]["general"]["domain"]["rewards"][1] = {"name": "reward:short", "weight": 0.2}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    return folder


def mine(folder: Path, *changes: str) -> dict[str, str]:
    with chdir(folder):  # files of a change are seen from where it is typed
        return digests(*changes, recipe=str(folder / "recipe.yaml"))


USES = {"general-rl", *(UNIFIED - {"unified-opd"})}


def swap(one: Path, two: Path) -> None:
    a, b = one.read_bytes(), two.read_bytes()
    one.write_bytes(b)
    two.write_bytes(a)


def test_hooks_count_where_they_are_used_by_their_place_and_content(hooked: Path) -> None:
    before = mine(hooked)

    def after(name: str, text: str) -> set[str]:
        with edited(hooked / name, text):
            return rerun(before, mine(hooked))

    assert after("reward.py", "\nX = 1\n") == USES
    assert after("helper.py", "\ndef more(): return 1\n") == USES
    assert after("pkg/a/cfg.py", "\nMORE = 1\n") == USES
    assert after("pkg/words.txt", "cat\n") == USES
    assert after("unused.py", "\nMORE = 1\n") == set()
    assert after("reward.py", '\n"""A docstring."""\n# and a comment\n') == set()
    assert rerun(before, mine(hooked)) == set()
    swap(hooked / "pkg/a/cfg.py", hooked / "pkg/b/cfg.py")
    assert rerun(before, mine(hooked)) == USES


def test_a_hook_that_nobody_names_changes_nothing(hooked: Path) -> None:
    before = mine(hooked)
    (hooked / "empty.py").write_text("")
    hooks = "hooks=[reward.py, helper.py, unused.py, pkg, empty.py]"
    assert rerun(before, mine(hooked, hooks)) == set()


def test_the_folder_that_hooks_lie_in_does_not_count(hooked: Path) -> None:
    before = mine(hooked)
    moved = hooked.rename(hooked.with_name("elsewhere"))
    assert rerun(before, mine(moved)) == set()


def test_declared_data_counts_by_content_where_hooks_are_used(hooked: Path) -> None:
    before, data = mine(hooked), "data=[list.txt]"
    assert rerun(before, mine(hooked, data)) == USES
    assert data_path("list.txt").read_text() == "bee\n"
    declared = mine(hooked, data)
    with edited(hooked / "list.txt", "dog\n"):
        assert rerun(declared, mine(hooked, data)) == USES
        assert data_path("list.txt").read_text() == "bee\ndog\n"
    mine(hooked)
    with pytest.raises(InputError, match=r"'list.txt' is not declared"):
        data_path("list.txt")


def test_a_module_that_a_hook_imports_counts_by_version_or_content(
    hooked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, local = tmp_path / "site-packages", tmp_path / "local"
    (site / "shelf_kit").mkdir(parents=True)
    (site / "shelf_kit/__init__.py").write_text("")
    record = site / "shelf_kit-1.0.dist-info"
    record.mkdir()
    (record / "top_level.txt").write_text("shelf_kit\n")
    (record / "METADATA").write_text("Name: shelf-kit\nVersion: 1.0\n")
    local.mkdir()
    (local / "own_lab.py").write_text("A = 1\n")
    for place in (site, local):
        monkeypatch.syspath_prepend(str(place))
    (hooked / "helper.py").write_text("import shelf_kit, own_lab\ndef score(t): return 1.0\n")
    before = mine(hooked)
    (record / "METADATA").write_text("Name: shelf-kit\nVersion: 1.1\n")
    forget_installed()
    newer = mine(hooked)
    assert rerun(before, newer) == USES
    (local / "own_lab.py").write_text("A = 22\n")
    assert rerun(newer, mine(hooked)) == USES


def test_modules_that_count_whole_are_those_that_are_started_or_passed_on() -> None:
    """Here an edit of any definition runs a stage again, whether the stage uses it or not."""
    looked_up = LookedUp()
    planned(SOURCE_ROOT, looked_up)
    assert {module for module, name in looked_up.next if name == WHOLE_MODULE} == {
        *("engines.devices.process_parent", "engines.megatron.device"),
        *("engines.sglang.cpu.seeded_sampling", "engines.sglang.models"),
        *(f"engines.weights.{name}" for name in ("broadcast.arrivals", "disk_delta.weight_copy")),
        "tasks.model_folder.gguf_tokenizer",
        *(f"engines.sglang.cpu.{name}" for name in ("cpu_attention", "missing_modules")),
        *("engines.sglang.cpu.row_invariant", "engines.sglang.prefix_cache"),
        *(f"engines.sglang.{name}" for name in ("plugin", "routed_batch")),
        *(f"engines.sglang.servers.{name}" for name in ("router_main", "server_hooks")),
        "engines.sglang.servers.server_launcher",
    }
