"""Recipes with one mistake each: `check` refuses them by field, with exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cases.recipes import RECIPE, check, write

pytestmark = pytest.mark.unit

PATH = "experts.roman.path"
SFT, RL = f"{PATH}.0.sft", f"{PATH}.1.rl"
DOMAIN, SIZE = "experts.roman.domain", "base.random"
WEIGHTLESS = "{name: 'numerals:Exact', outcome: true, weight: 0}"

CHANGES: list[tuple[str, str]] = [
    # names of fields and their types
    ("evalaute={problems: 32}", "evalaute: unknown field; did you mean `evaluate`?"),
    (f"{RL}.problem_per_step=8", f"{RL}.problem_per_step: unknown field; did you mean"),
    (f"{SFT}.steps=many", f"{SFT}.steps: must be a whole number"),
    (f"{SFT}.steps=-5", f"{SFT}.steps: input should be greater than 0"),
    (f"{SFT}.steps=1.5", f"{SFT}.steps: must be a whole number"),
    (f"{SFT}.steps='150'", f"{SFT}.steps: must be a number, not the text '150'"),
    (f"{SFT}.demonstrations=0", f"{SFT}.demonstrations: input should be greater than 0"),
    ("seed=abc", "seed: must be a whole number"),
    ("seed=true", "seed: must be a number, not the truth value `true`"),
    (f"{RL}.bounds.min_outcome=true", "min_outcome: must be a number, not the truth value"),
    ("experts=null", "experts: write fields below it"),
    ("base=null", "base: write fields below it"),
    ("base.folder=x", "base: give exactly one of"),
    (f"{DOMAIN}.rewards=numerals:Exact", f"{DOMAIN}.rewards: must be a list"),
    ("hooks=numerals.py", "hooks: must be a list"),
    (f"{DOMAIN}.rewards.0.outcome=yes please", "rewards.0.outcome: must be true or false"),
    (f"{DOMAIN}.rewards.1.weight=high", "rewards.1.weight: must be a number"),
    # names that a person chooses
    ("name=рим", "name: has only small letters, digits and `-`"),
    ("name=my roman run", "name: has only small letters, digits and `-`"),
    ("name=a/b", "name: has only small letters, digits and `-`"),
    ("name=Roman", "name: has only small letters, digits and `-`"),
    (f"name={'r' * 76}", "name: string should have at most 60 characters"),
    # paths
    (f"{PATH}.rl.steps=-5", f"{RL}.steps: input should be greater than 0"),
    (f"{PATH}.opd.steps=5", "`opd` is no position in a list of 2, and a key of none of its items"),
    (f"{PATH}.7.rl.steps=5", "`7` is no position in a list of 2"),
    (f"{PATH}=rl", f"{PATH}: must be a list"),
    (f"{PATH}=null", f"{PATH}: has no value"),
    (f"{PATH}=[rll]", f"{PATH}.0: no stage of kind `rll` stands in a path; known: admit, screen,"),
    (f"{PATH}=[rll]", "Did you mean 'rl'?"),
    (f"{PATH}=[evaluate]", "no stage of kind `evaluate` stands in a path"),
    (f"{PATH}=[rl]", f"{RL.replace('1', '0')}.steps: is missing"),
    (f"{PATH}=[7]", f"{PATH}.0: write a stage as `kind: settings`, not 7"),
    (f"{PATH}=[{{}}]", f"{PATH}.0: write a stage as `kind: settings`; kinds: admit"),
    (f"{PATH}.1={{rl: {{}}, sft: {{}}}}", "one stage has one kind, not rl and sft; begin each"),
    (f"{PATH}.1.options={{}}", f"{PATH}.1.options: unknown field; known here: curriculum_options"),
    (f"{PATH}.1.curriculum_options={{topp: 5}}", f"{PATH}.1.curriculum_options: "),
    (
        f"{PATH}.1={{opd: {{steps: 1, optimizer: {{lr: 0.1}}}}}}",
        f"{PATH}.1.opd: it has no teacher for roman: write `teachers: {{roman: STAGE}}`",
    ),
    (
        f"{PATH}.0=distill",
        f"{PATH}.0.distill: what follows does not learn from its data; put `sft`",
    ),
    # parts
    (f"{RL}.algorithm.preset=grop", f"{RL}.algorithm.preset: input should be 'grpo', 'dapo'"),
    (f"{DOMAIN}.rewards.0.outcome=false", "0 rewards say `outcome: true`; exactly one must"),
    (f"{DOMAIN}.rewards.1.outcome=true", "2 rewards say `outcome: true`; exactly one must"),
    (f"{DOMAIN}.curriculum.options={{topp: 5}}", "has no option 'topp'. Did you mean 'top'?"),
    (f"{DOMAIN}.curriculum.name=numerals:Numeral", "Did you mean 'Numerals'?"),
    (f"{DOMAIN}.curriculum.options.top=many", "option 'top' takes int, got 'many'"),
    (f"{DOMAIN}.curriculum.options.noise=-3", "`noise` is a share from 0 to 1, not -3"),
    (f"{DOMAIN}.curriculum.options.noise=low", "option 'noise' takes float, got 'low'"),
    (f"{DOMAIN}.max_turns=3", f"{DOMAIN}.max_turns: is 3, but its curriculum has no environment"),
    ("hooks=[romans.py]", "romans.py is missing"),
    # numbers that no machine or model could take
    (f"{SFT}.steps=1000000000000000000000", f"{SFT}.steps: input should be less than or equal to"),
    (f"{SFT}.batch_size=1000000000", f"{SFT}.batch_size: input should be less than or equal to"),
    (f"{RL}.optimizer.lr=1e30", f"{RL}.optimizer.lr: input should be less than or equal to 1,"),
    (f"{RL}.bounds.max_entropy=.nan", "max_entropy: input should be a finite number, got nan"),
    (f"{RL}.optimizer.lr=.nan", f"{RL}.optimizer.lr: input should be"),
    (f"{RL}.optimizer.lr=.inf", f"{RL}.optimizer.lr: input should be a finite number, got inf"),
    (f"{RL}.algorithm.entropy_bonus=.inf", "entropy_bonus: input should be a finite number"),
    (f"{DOMAIN}.rewards.1.weight=.inf", "rewards.1.weight: input should be a finite number"),
    (f"{DOMAIN}.curriculum.options.noise=.nan", "options.noise: is nan; must be a finite number"),
    (f"{RL}.algorithm.temperature=0", f"{RL}.algorithm.temperature: input should be greater"),
    (f"{SIZE}.heads=3", "heads: 3 heads cannot share 2 kv_heads; allowed kv_heads: 1, 3"),
    (f"{SIZE}.head_dim=15", "head_dim: 15 is odd"),
    (f"{SIZE}.vocab_size=10", f"{SIZE}.vocab_size: is 10; bytes, special tokens and phrases"),
    (f"{SIZE}.max_length=8", "base: the model's context of 8 tokens holds no prompt and answer"),
    # numbers that contradict each other
    (f"{RL}.group_size=1", "a group of one gives no gradient; set group_size to 2 or more"),
    (f"{DOMAIN}.max_new_tokens=100000", f"{DOMAIN}.max_new_tokens: is 100000, but the model's"),
    (
        f"{RL}.fleet.context_length=32",
        f"{DOMAIN}.max_new_tokens: is 24, but {RL}.fleet.context_length has 32 tokens, of which"
        " SGLang keeps 8 free; allowed: 1 to 23 minus the prompt's tokens",
    ),
    (
        f"{RL}.algorithm.mini_batches=65",
        f"{RL}.algorithm.mini_batches: is 65, but a step has 64 samples (problems_per_step x"
        " group_size); allowed: 1 to 64",
    ),
    (
        f"{SFT}.optimizer.warmup_steps=151",
        f"{SFT}.optimizer.warmup_steps: is 151, longer than the stage, which has 150 optimizer"
        " steps; allowed: 0 to 150",
    ),
    (f"{RL}.optimizer.warmup_steps=13", f"{RL}.optimizer.warmup_steps: is 13, longer than the"),
    (f"{RL}.optimizer.decay=cosine", f"{RL}.optimizer.decay: cosine ends at min_lr_ratio times"),
    (f"{RL}.optimizer.min_lr_ratio=0.5", "is 0.5, and has no effect with `decay: constant`"),
    (f"{RL}.critic={{optimizer: {{lr: 1e-3, decay: linear}}}}", "critic: nothing uses it"),
    # what would train nothing
    (f"{DOMAIN}.rewards=[{WEIGHTLESS}]", "each of its rewards has weight 0"),
    # stages, layouts, engines, store
    ("resources={trainer_ranks: 3, default: {trainer: {tp: 3}}}", "tp 3 does not divide"),
    ("resources={trainer_ranks: 1, default: {trainer: {tp: 2}}}", "trainer_ranks is 1"),
    ("resources={stages: {roman-lr: {servers: 1}}}", "no such stage; did you mean `roman-rl`?"),
    (f"{RL}.trainer.megatron={{recompute_granulrity: full}}", "did you mean recompute_granular"),
    (f"{RL}.fleet.sglang={{mem_fraction_statc: 0.8}}", "did you mean mem_fraction_static?"),
    (f"{RL}.fleet.sglang={{mem_fraction_static: lots}}", "takes float or null, got 'lots'"),
    ("storage.root=s4://x/y", "storage.root: s4://x/y: no kind of store is called `s4`"),
]


def _with_line(line: str) -> str:
    return f"{RECIPE}{line}\n"


TEXTS: list[tuple[str, str | bytes, str]] = [
    ("empty", "", "has nothing in it; a recipe is a mapping of fields"),
    ("list", "- name: x\n", "holds a list; a recipe is a mapping of fields"),
    ("tabs", RECIPE.replace("  random", "\trandom"), "cannot start any token; indent with"),
    ("cut", RECIPE.replace("steps: 150", "steps: [:"), "while parsing a flow node"),
    ("twice", _with_line("seed: 3"), "`seed` is written twice; keep one of them"),
    ("alias", RECIPE.replace("seed: 0", "seed: *nope"), "found undefined alias 'nope'"),
    (
        "anchors",
        RECIPE.replace("name: roman\n", "name: &x roman\n").replace("seed: 0", "seed: &x 0"),
        "found duplicate anchor 'x'",
    ),
    ("binary", bytes([0xFF, 0xFE, 0, 1]), "is UTF-16; save it as UTF-8"),
    ("latin", _with_line("# caf").encode() + b"\xe9\n", "line 19 is not UTF-8 (byte 0xe9)"),
    ("expert with umlaut", RECIPE.replace("  roman:", "  römisch:"), "experts.römisch.domain.name"),
    (
        "expert with space",
        RECIPE.replace("  roman:", "  my roman:"),
        "experts.my roman.domain.name",
    ),
    ("expert with slash", RECIPE.replace("  roman:", "  a/b:"), "experts.a/b.domain.name"),
    ("expert named base", RECIPE.replace("  roman:", "  base:"), "would collide with a stage's"),
    ("no base", RECIPE.replace("base:\n", "bas:\n"), "base: is missing"),
]


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path / "home"))


def test_every_changed_field_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.checks.trial.findings.try_apart", _here)
    recipe = write(tmp_path, RECIPE)
    wrong: list[str] = []
    for change, wanted in CHANGES:
        code, _, told = check(recipe, capsys, change)
        if code != 2 or wanted not in told:
            wrong.append(f"{change}: exit code {code}: {told}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("content", "wanted"), [case[1:] for case in TEXTS], ids=[case[0] for case in TEXTS]
)
def test_a_broken_text_is_refused(
    content: str | bytes, wanted: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, told = check(write(tmp_path, content), capsys)
    assert (code, wanted in told) == (2, True), told


@pytest.mark.parametrize(
    "content",
    [RECIPE, RECIPE.replace("\n", "\r\n"), f"\ufeff{RECIPE}"],
    ids=["plain", "CRLF", "byte order mark"],
)
def test_the_recipe_itself_is_fine_however_it_was_saved(
    content: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("flows.checks.trial.findings.try_apart", _here)
    code, out, told = check(write(tmp_path, content), capsys)
    assert code == 0, told
    assert "seed: 0" not in out, "fields at their default are left out"
    assert "warning" not in out


def _here(request: object) -> object:
    """In this process: its own costs a second, and the hook is a right one."""
    from flows.checks.trial.request import Blind, TrialRequest
    from flows.checks.trial.tried_parts import try_parts
    from infra.user_files import install_hooks, read_hooks

    assert isinstance(request, TrialRequest)
    install_hooks(read_hooks(request.hooks, request.data))
    return try_parts(request, Blind())
