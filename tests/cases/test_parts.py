"""Hooks that break their contract: a trial of the recipe's parts finds each, with its class."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flows.catalog import plan_of
from flows.checks.trial import findings as trial
from flows.checks.trial.request import IMPORT_SECONDS, Blind, Findings, TrialRequest, request_of
from flows.checks.trial.tried_parts import try_parts
from flows.load import load_recipe
from infra.home import SOURCE_ROOT
from infra.processes.children import birth_of, same_process
from infra.user_files import install_hooks, read_hooks
from tests.cases.recipes import RECIPE, check, write
from tests.parts.machine import until

pytestmark = pytest.mark.unit

DOMAIN = "experts.roman.domain"
CURRICULA: list[tuple[str, str]] = [
    ("NoProblems", "NoProblems': problems of split 'sft': 2 were asked for, 0 came"),
    ("TooFew", "TooFew': problems of split 'sft': 2 were asked for, 1 came"),
    ("TooFewHeldOut", "problems of split 'heldout': 32 were asked for, 5 came"),
    ("NoDemonstrations", "NoDemonstrations': demonstrations: 8 were asked for, none came"),
    ("OneId", "gave two problems with the id 'x': their rollouts would be one group"),
    ("IdsOfTwoSplits", "splits sft and rl both have a problem with the id '0'"),
    ("Leaky", "splits sft and heldout share problems, 32 of 32 drawn, e.g."),
    ("RaisesForRl", "problems of split 'rl': raised KeyError: 'no rl data' (misbehaving.py, line "),
    ("SetForReference", "problem roman/sft/0/0: its reference is no JSON"),
    ("Dicts", "gave dict where engines.types.Problem is wanted"),
    ("Set", "gave str where engines.types.Problem is wanted"),
    ("Texts", "`messages` must be a tuple of engines.types.Message, not str"),
    ("Drifting", "gives different problems at the same positions when fewer are requested"),
    ("IgnoresStart", "split sft: the problem at position 1 is 'roman/sft/0/1' when drawn from the"),
    ("EndsWithTheUser", "turns must start and end with the assistant"),
    (
        "NestedTool",
        "tool search gives its parameter q the type {'type': 'string'}; allowed: string",
    ),
    ("WithoutEnvironment", "WithoutEnvironment lacks environment()"),
]
ENVIRONMENTS: list[tuple[str, str]] = [
    ("StartRaises", "start() raised ConnectionError: my tool server is down (misbehaving.py, line"),
    ("StepRaises", "step() raised ValueError: bad step (misbehaving.py, line "),
    ("StepHangs", "misbehaving:StepHangs: step() did not finish within 0.5 s"),
    ("StepGivesText", "step() of _Episode gave str, not engines.types.Step"),
    ("NoEnvironmentComes", "environment() raised OSError: no tools here (misbehaving.py, line "),
]
REWARDS: list[tuple[str, str]] = [
    ("raises", "on a demonstration of roman/sft/0/0 raised RuntimeError: my judge is broken"),
    ("text", "misbehaving:text returned str 'good': a reward returns its score as one number"),
    ("number", "gives 0.5 to every demonstration and to an empty answer as well"),
    ("nothing", "misbehaving:nothing returned None: a reward returns its score as one number"),
    ("above_one", "misbehaving:above_one scored 7.0: an outcome must be between 0 and 1"),
    ("not_a_number", "`score` is nan: every score must be a finite number"),
    ("constant", "gives 1 to every demonstration and to an empty answer as well"),
    ("half_raises", "raised RuntimeError: flaky judge (misbehaving.py, line "),
    ("plain", "gives 1 to every demonstration and to an empty answer as well"),
    (
        "sleeps",
        "misbehaving:sleeps on a demonstration of roman/sft/0/0 did not finish within 0.5 s",
    ),
    ("leaves", "ends the process (exit code 4) (misbehaving.py, line "),
    (
        "NoReward",
        "NoReward has no `__call__`, which is not a reward. Write `def reward(transcript)",
    ),
]


DRIVERS: list[tuple[str, str]] = [
    ("DriverRaises", "roman/sft/0/0: driver: ConnectionError: my harness is down"),
    ("GivesText", "driver: it returned str instead of what `sessions.finish` returns"),
    ("WritesNothing", "the policy wrote nothing; call sessions.turn() at least once"),
    ("DriverHangs", "driver: TimeoutError: no turn of the policy, and no end, for 0.5 s"),
    ("WithoutRun", "WithoutRun lacks run()"),
    ("NoDriver", "module 'misbehaving' has no 'NoDriver'"),
]


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path / "home"))


def _request(folder: Path, *changes: str) -> TrialRequest:
    limits = [f"{place}.timeout_s=0.5" for place in (DOMAIN, f"{DOMAIN}.rewards.0")]
    hooks = f"hooks=[{folder}/numerals.py, {folder}/misbehaving.py]"
    recipe = load_recipe(str(write(folder, RECIPE)), [hooks, *limits, *changes])
    return request_of(recipe, plan_of("post-train", recipe, {}))


def _try(folder: Path, *changes: str) -> Findings:
    request = _request(folder, *changes)
    install_hooks(read_hooks(request.hooks))
    return try_parts(request, Blind())


def _curriculum(name: str) -> tuple[str, str]:
    place = f"{DOMAIN}.curriculum"
    return f"{place}.name=misbehaving:{name}", f"{place}.options={{}}"


def _reward(name: str) -> str:
    return f"{DOMAIN}.rewards.0.name=misbehaving:{name}"


@pytest.mark.parametrize(("name", "wanted"), CURRICULA)
def test_a_curriculum_that_breaks_its_contract_is_named(
    name: str, wanted: str, tmp_path: Path
) -> None:
    found = _try(tmp_path, *_curriculum(name))
    assert wanted in "\n".join(found.problems)
    assert all(line.startswith("experts.roman.domain.curriculum: ") for line in found.problems)
    assert name in found.problems[0]


@pytest.mark.parametrize("most_turns", [1, 2])
@pytest.mark.parametrize(("name", "wanted"), ENVIRONMENTS)
def test_an_environment_that_breaks_its_contract_is_named(
    name: str, wanted: str, most_turns: int, tmp_path: Path
) -> None:
    found = _try(tmp_path, *_curriculum(name), f"{DOMAIN}.max_turns={most_turns}")
    assert [wanted in line for line in found.problems] == [True], found.problems


@pytest.mark.parametrize(("name", "wanted"), REWARDS)
def test_a_reward_that_breaks_its_contract_is_named_once(
    name: str, wanted: str, tmp_path: Path
) -> None:
    found = _try(tmp_path, _reward(name))
    assert [wanted in line for line in found.problems] == [True], found.problems
    assert found.problems[0].startswith("experts.roman.domain.rewards.0: ")


@pytest.mark.parametrize(("name", "wanted"), DRIVERS)
def test_a_driver_that_breaks_its_contract_is_named(name: str, wanted: str, tmp_path: Path) -> None:
    driver = f"{DOMAIN}.driver"
    found = _try(tmp_path, f"{driver}.name=misbehaving:{name}", f"{driver}.timeout_s=0.5")
    assert [wanted in line for line in found.problems] == [True], found.problems
    assert found.problems[0].startswith("experts.roman.domain.driver: ")


def test_a_driver_that_nobody_knows_is_named(tmp_path: Path) -> None:
    (problem,) = _try(tmp_path, f"{DOMAIN}.driver.name=conversaton").problems
    assert "unknown driver 'conversaton'. Did you mean 'conversation'?" in problem


def test_demonstrations_that_the_outcome_calls_wrong_are_a_warning(tmp_path: Path) -> None:
    found = _try(tmp_path, _reward("always_zero"))
    assert found.problems == []
    assert "gives 0 to all of 8 demonstrations: the cold start would teach" in found.cautions[0]


def test_a_slow_reward_is_tried_once_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.checks.trial.rewards._SLOW_S", -1.0)
    cautions = _try(tmp_path).cautions
    said = "s for one verdict, and was tried on no further answer"
    assert cautions, "each reward is slow here"
    assert all(said in caution for caution in cautions), cautions


def test_right_parts_are_fine(tmp_path: Path) -> None:
    found = _try(tmp_path)
    assert (found.problems, found.cautions) == ([], [])
    (note,) = found.notes
    assert note.startswith("domain roman: thinking is off by the template")


# In a process of its own


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("blocks", "hangs and blocks its process (misbehaving.py, line "),
        ("dies", "on a demonstration of roman/sft/0/0 ended its process (exit code 5)"),
    ],
)
def test_a_reward_that_takes_the_process_with_it_is_named(
    name: str, wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "_GRACE_SECONDS", 3.0)
    found = trial.try_apart(_request(tmp_path, _reward(name)))
    assert [wanted in line for line in found.problems] == [True], found.problems
    assert "misbehaving:" in found.problems[0]


def _spoiled(folder: Path, name: str, text: str | bytes) -> Path:
    """The recipe with a hook file of another name or content in place of the right one."""
    recipe = write(folder, RECIPE.replace("numerals", name))
    data = text.encode() if isinstance(text, str) else text
    (folder / f"{name}.py").write_bytes(data)
    return recipe


LICENSE = Path(__file__).parents[2] / "LICENSE"
RIGHT = (Path(__file__).parent / "parts/numerals.py").read_text()
FILES: list[tuple[str, str | bytes, str]] = [
    ("random", RIGHT, "random.py has the name of a module of Python's own library"),
    ("json", RIGHT, "json.py has the name of a module of Python's own library"),
    ("rewards", RIGHT, "rewards.py has the name of one of Tributary's packages"),
    ("torch", RIGHT, "torch.py has the name of an installed module"),
    ("my-hook", RIGHT, "my-hook.py cannot be imported under that name; rename it"),
    ("syntax", "def f(:\n", "hooks: syntax.py: line 1: invalid syntax"),
    ("latin", RIGHT.encode() + b"# \xe9\n", "can't decode byte 0xe9"),
    ("two", b"", "module 'two' has no 'Numerals'"),
    ("exits", "raise SystemExit(3)\n", "importing exits ends the process (exit code 3) (exits.py"),
]


@pytest.mark.parametrize(("name", "text", "wanted"), FILES, ids=[case[0] for case in FILES])
def test_a_hook_file_that_cannot_be_used_is_named(
    name: str,
    text: str | bytes,
    wanted: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, _, told = check(_spoiled(tmp_path, name, text), capsys)
    assert (code, wanted in told) == (2, True), told


def test_two_hooks_of_one_name_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = write(tmp_path, RECIPE.replace("[numerals.py]", "[numerals.py, other/numerals.py]"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other/numerals.py").write_text(RIGHT)
    code, _, told = check(recipe, capsys)
    assert (code, "have the same name, numerals; rename one of them" in told) == (2, True), told


def test_a_file_that_a_hook_reads_undeclared_is_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = f"{RIGHT}\nwith open({str(LICENSE)!r}) as file:\n    file.read()\n"
    recipe = _spoiled(tmp_path, "reads", text)
    code, out, told = check(recipe, capsys)
    assert code == 0, told
    assert f"hook reads.py reads {LICENSE}, which the recipe does not declare" in out


def test_a_hook_that_is_not_listed_is_said_to_be_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = write(tmp_path, RECIPE.replace("hooks: [numerals.py]", ""))
    code, _, told = check(recipe, capsys)
    assert (code, "no module 'numerals' can be imported; list its file" in told) == (2, True), told


def test_a_hook_that_is_slow_to_import_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "_GRACE_SECONDS", 2.0 - IMPORT_SECONDS)
    recipe = load_recipe(str(_spoiled(tmp_path, "slow", "import time\ntime.sleep(3600)\n")))
    found = trial.try_apart(request_of(recipe, plan_of("post-train", recipe, {})))
    assert ["importing slow hangs and blocks" in line for line in found.problems] == [True]


def test_a_hook_that_prints_is_warned_of_and_its_text_kept_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And it has no secret of the command's to print."""
    monkeypatch.setenv("GITHUB_TOKEN", "planted-tool-01")
    says = "print('hello from a hook' + os.environ.get('GITHUB_TOKEN', ''))"
    recipe = _spoiled(tmp_path, "loud", f"{RIGHT}\nimport os\n{says}\n")
    code, out, told = check(recipe, capsys)
    assert code == 0, told
    assert "warning: hooks: loud.py prints while it is imported ('hello from a hook')" in out


def test_what_was_found_good_is_not_tried_again_until_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[TrialRequest] = []

    def count(request: TrialRequest) -> Findings:
        tried.append(request)
        return Findings(problems=[], cautions=["mind the gap"])

    monkeypatch.setattr(trial, "try_apart", count)
    request = _request(tmp_path)
    assert trial.findings_of(request).cautions == ["mind the gap"]
    assert trial.findings_of(request).cautions == ["mind the gap"]
    assert len(tried) == 1
    trial.findings_of(request, again=True)
    assert len(tried) == 2
    (tmp_path / "numerals.py").write_text(f"{RIGHT}\n# changed\n")
    trial.findings_of(request)
    assert len(tried) == 3


def test_a_trial_that_is_ended_leaves_no_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "import os, tempfile\ntempfile.mkdtemp(prefix='mine-')\nos._exit(5)\n"
    recipe = load_recipe(str(_spoiled(tmp_path, "leaving", text)))
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    found = trial.try_apart(request_of(recipe, plan_of("post-train", recipe, {})))
    assert "importing leaving ended its process (exit code 5)" in found.problems[0]
    assert list(temporary.iterdir()) == []


def test_a_trial_ends_with_its_owner_however_that_ended(tmp_path: Path) -> None:
    text = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "open('draft', 'w').write(str(child.pid))\n"
        "__import__('os').rename('draft', 'child.pid')\n"
        "time.sleep(600)\n"
    )
    recipe = load_recipe(str(_spoiled(tmp_path, "waits", text)))
    request = request_of(recipe, plan_of("post-train", recipe, {}))
    command = "flows.checks.trial.trial_process", tmp_path / "output", tmp_path / "stack"
    paths = {"PYTHONPATH": str(SOURCE_ROOT)}
    trying = subprocess.Popen(
        [sys.executable, "-m", *map(str, command)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        cwd=tmp_path,
        env=os.environ | paths,
    )
    assert trying.stdin is not None
    assert trying.stdout is not None
    trying.stdin.write(request.model_dump_json().encode() + b"\n")
    trying.stdin.flush()
    while b"importing waits" not in trying.stdout.readline():
        assert trying.poll() is None
    child = tmp_path / "child.pid"
    until(child.is_file, 60)
    pid = int(child.read_text())
    birth = birth_of(pid)
    assert same_process(pid, birth)
    trying.stdin.close()  # as the kernel does with what a killed process had open
    assert trying.wait(60) == -signal.SIGKILL
    trying.stdout.close()
    until(lambda: same_process(pid, birth) is None, 60)


def test_the_trial_leaves_no_process_behind(tmp_path: Path) -> None:
    mark = f"mark-{os.getpid()}"
    text = (
        "import subprocess, sys\n"
        f"subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)', {mark!r}])\n"
    )
    recipe = load_recipe(str(_spoiled(tmp_path, "spawns", text)))
    trial.try_apart(request_of(recipe, plan_of("post-train", recipe, {})))
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    assert not [line for line in listed.stdout.splitlines() if mark in line]
