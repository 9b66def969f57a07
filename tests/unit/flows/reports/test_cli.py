"""The command: quick help, exit codes, and errors that say what to do."""

from __future__ import annotations

import json
import re
import resource
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flows.catalog import plan_of
from flows.checks.recipe_checks import check_recipe
from flows.command.main import main
from flows.explain import characters
from flows.load import load_recipe
from flows.recipe import NAME_PATTERN, Recipe
from flows.running.new_run import new_run
from flows.running.records import RunState
from infra.errors import InputError
from infra.home import home

pytestmark = pytest.mark.unit

EXAMPLE = Path(__file__).parents[4] / "examples" / "fourth_expert" / "recipe.yaml"


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path))


def _exit_code(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    return int(caught.value.code or 0)


@pytest.mark.parametrize("recipe", ["cpu-demo", "cpu-smoke", str(EXAMPLE)])
def test_check_accepts_the_recipes_that_we_ship(
    recipe: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _exit_code("check", recipe) == 0
    assert "unified-rl" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("experts.agent.domain.curriculum.name=agnet", "Did you mean 'agent'"),
        ("experts.agent.domain.rewards.0.name=nowhere:Reward", "the recipe's `hooks:`"),
        (
            "experts.agent.domain.rewards.1.name=agent-answer",
            "give each a `label` of its own",
        ),
        ("base={folder: /nowhere/model}", "base.folder: /nowhere/model is missing"),
        ("experts.agent.domain.rewards.0.outcome=false", "exactly one must"),
        ("experts.general.domain.max_turns=3", "has no environment"),
        ("resources.stages.agent-tl.servers=1", "did you mean `agent-rl`"),
        ("resources.stages.agent-tl-2.servers=1", "no such stage"),
        ("resources.stages.agent-rl.servers=9", "resources.servers is 2"),
        ("resources.stages.agent-rl.trainer.dp=9", "resources.trainer_ranks is 2"),
        ("resources.stages.agent-rl.trainer={tp: 3}", "stage agent-rl"),
        (
            "experts.agent.path.rl.trainer.megatron={recompute_granularty: full}",
            "recompute_granularity",
        ),
        ("experts.agent.path.rl.fleet.sglang={mem_fraction_statik: 0.5}", "mem_fraction_static"),
        ("experts.agent.domain.rewards.0.timeout_s=1800", "stall_seconds 1800"),
        ("hooks=[missing.py]", "missing.py is missing"),
        ("experts.agent.domain.name=other", "leave it out"),
    ],
)
def test_what_cannot_run_is_refused_before_any_job(
    change: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _exit_code("check", "cpu-smoke", "--set", change) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_megatron_options_are_checked_though_the_base_is_out_of_reach(
    capsys: pytest.CaptureFixture[str],
) -> None:
    change = "experts.agent.path.rl.trainer.megatron={recompute_granularty: full}"
    out_of_reach = "base.folder=memory://nowhere/model"
    assert _exit_code("check", "cluster", "--set", change, "--set", out_of_reach) == 2
    assert "did you mean recompute_granularity" in capsys.readouterr().err


def test_resources_may_name_stages_of_other_flows() -> None:
    recipe = load_recipe("cpu-smoke", [
        "resources.stages.agent-rl-3.trainer.dp=2", "resources.stages.model-mine.servers=2",
    ])  # fmt: skip
    check_recipe(recipe, plan_of("post-train", recipe, {}))
    check_recipe(recipe, plan_of("expert", recipe, {"name": "agent"}))


def test_a_recipe_that_demands_exactness_is_refused_where_no_engine_keeps_it() -> None:
    lossy = "experts.agent.path.rl.fleet.sglang={kv_cache_dtype: fp8_e5m2}"
    recipe = load_recipe("cpu-smoke", [lossy])
    assert recipe.determinism == "auto"
    refusal = r"agent-rl: fleet\.sglang\.kv_cache_dtype was not .*; set `determinism: close`"
    with pytest.raises(InputError, match=refusal):
        check_recipe(recipe, plan_of("post-train", recipe, {}))
    close = load_recipe("cpu-smoke", [lossy, "determinism=close"])
    check_recipe(close, plan_of("post-train", close, {}))
    same = load_recipe("cpu-smoke", ["experts.agent.path.rl.fleet.sglang={dtype: float32}"])
    check_recipe(same, plan_of("post-train", same, {}))


def test_a_layout_is_checked_for_the_flow_that_runs() -> None:
    recipe = load_recipe("cpu-smoke", ["resources.stages.agent-rl-3.trainer.dp=9"])
    check_recipe(recipe, plan_of("post-train", recipe, {}))
    with pytest.raises(InputError, match="agent-rl-3: its trainer layout needs 9 ranks"):
        check_recipe(recipe, plan_of("distill-rounds", recipe, {"expert": "agent", "rounds": 2}))


def test_a_model_to_compare_that_is_missing_is_refused(tmp_path: Path) -> None:
    recipe = load_recipe("cpu-smoke")
    (tmp_path / "empty").mkdir()
    models = {"one": str(tmp_path / "gone"), "two": str(tmp_path / "empty")}
    with pytest.raises(InputError, match=r"models\.one: .*missing[^$]*models\.two: .*config\.json"):
        check_recipe(recipe, plan_of("evaluate", recipe, {"models": models}))


def test_a_wrong_recipe_name_is_said_in_one_clean_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert _exit_code("check", "cpu-dmeo") == 2
    assert capsys.readouterr().err.rstrip().endswith("study); did you mean `cpu-demo`?")


def test_an_expert_may_not_take_a_stage_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "clash.yaml"
    path.write_text(
        EXAMPLE.read_text()
        .replace("  sorting:\n", "  unified:\n")
        .replace("[sorting.py]", f"[{EXAMPLE.parent / 'sorting.py'}]")
    )
    assert _exit_code("check", str(path)) == 2
    assert "collide" in capsys.readouterr().err


def test_resuming_a_run_that_does_not_exist_is_bad_input(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert _exit_code("resume", "nothing") == 2
    assert "tributary run" in capsys.readouterr().err


def test_running_without_the_stack_says_how_to_start_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert _exit_code("run", "cpu-smoke") == 1
    assert "tributary up" in capsys.readouterr().err
    assert _exit_code("report") == 2, "no run is left on record"


def test_a_run_that_its_store_lost_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    run = new_run(load_recipe("cpu-smoke"), "post-train", {}, in_process=True)
    run.store.delete_tree("runs")
    assert _exit_code("resume") == 2
    assert "does not exist in" in capsys.readouterr().err


def test_a_report_writes_its_page_and_links_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    run = new_run(load_recipe("cpu-smoke"), "post-train", {}, in_process=True)
    run.put_state(RunState(state="running", links={"report": "file:///nowhere.html"}))
    assert _exit_code("report") == 0
    said = capsys.readouterr().out
    assert "running" in said
    assert "no scores yet" in said
    assert "nowhere.html" not in said
    pages = list((home() / "reports").glob("*.html"))
    assert [page.stem for page in pages] == [run.run]
    assert "no scores yet" in pages[0].read_text()


def test_an_expert_that_the_recipe_lacks_cannot_be_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert _exit_code("run", "cpu-smoke", "--in-process", "--expert", "agnet") == 2
    assert "did you mean `agent`" in capsys.readouterr().err
    assert _exit_code("report") == 2, "no run is left on record"


def test_a_run_cannot_begin_in_a_read_only_store(capsys: pytest.CaptureFixture[str]) -> None:
    root = "storage.root=/sys/tributary"
    assert _exit_code("run", "cpu-smoke", "--in-process", "--set", root) == 1
    assert "could not create file:///sys/tributary/runs" in capsys.readouterr().err
    assert _exit_code("report") == 2, "no run is left on record"


def test_a_run_cannot_begin_on_a_full_disk(capsys: pytest.CaptureFixture[str]) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))  # as under a full quota
        code = _exit_code("run", "cpu-smoke", "--in-process")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert code == 1
    assert "the disk or quota is full" in capsys.readouterr().err
    assert _exit_code("report") == 2, "no run is left on record"


def test_a_plan_of_a_read_only_store_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert _exit_code("check", "cpu-smoke", "--set", "storage.root=/sys/tributary") == 0
    said = capsys.readouterr().out
    assert "to run" in said
    assert "warning: storage.root: /sys/tributary cannot be written" in said


@pytest.mark.parametrize("root", ["/proc/tributary", "file:///etc/passwd/tributary"])
def test_a_store_where_nobody_can_make_a_folder_is_refused(
    root: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _exit_code("check", "cpu-smoke", "--set", f"storage.root={root}") == 2
    assert f"storage.root: {root} cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["a/b", "Mine", "../x", "x" * 61, "-x"])
def test_a_run_gets_no_name_that_cannot_be_found_again(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _exit_code("run", "cpu-smoke", "--in-process", f"--name={name}") == 2
    assert "small letters, digits and `-`" in capsys.readouterr().err


@pytest.mark.parametrize("command", [("artifacts",), ("rollouts", "sft")])
def test_a_store_that_is_not_there_is_bad_input(
    command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _exit_code(*command, "--root", str(tmp_path / "gone")) == 2
    assert "there is no such folder" in capsys.readouterr().err


def test_fewer_than_one_rollout_cannot_be_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert _exit_code("rollouts", "sft", "--limit", "-3") == 2
    assert "--limit -3: how many samples to show, from 1" in capsys.readouterr().err


def test_an_empty_store_lists_no_artifacts(capsys: pytest.CaptureFixture[str]) -> None:
    assert _exit_code("artifacts", "--json") == 0
    assert json.loads(capsys.readouterr().out) == []


def test_an_unknown_option_is_bad_input() -> None:
    assert _exit_code("run", "cpu-smoke", "--nonsense") == 2


MISTAKES = {
    "serve mine=": "the name of the model is empty",
    "serve =m": "write NAME=MODEL, or the model alone: m",
    "serve q.jsonl": "is a file; a model is a folder",
    "check q.jsonl": "a recipe is a YAML file; for rows of data see",
    "preview q.jsonl --model m --rows -1": "--rows -1: give a whole number of at least 0",
    "chat m --temperature -1": "--temperature -1.0: give a number from 0",
    "sft m q.jsonl": "needs --model; m q.jsonl stands behind no option",
    "sft --model": "needs --model with a value behind it",
    "init q.jsonl": "q.jsonl: is a file; give a folder",
    "rl --model m --data q.jsonl --reward rr.py:x --print": "did you mean `r.py`?",
    "serve model --port 99999": "Must be <= 65535; see `tributary serve --help`",
    "preview --model model": "files: none is given; name at least one",
    "rl --model m --data q.jsonl --reward math --pattern ( --print": "regular expression",
    "rl --model m --data q.jsonl --reward r.py: --print": "say what of the file: r.py:judged",
    "rl --model m --data q.jsonl --reward math=nan --print": "write name=weight",
    "rl --model m --domain agent --name 'My Run' --print": "name: has only small letters, digits",
    "check empty.yaml": "empty.yaml: has nothing in it; a recipe is a mapping of fields",
    "check tab.yaml": "line 1, column 6: while scanning for the next token: found",
    "check .": "`.` is a folder; name a recipe's file, of those in it: empty.yaml, tab.yaml",
    "check cpu-smoke --set seed=x": "got 'x' (in --set seed)",
    "check cpu-smoke --set resources.servers=many": "'many' (in --set resources.servers)",
    "run cpu-smoke --only nothing --in-process": "--only nothing: no such stage",
    "run cpu-smoke --name 'Bad Name'": "small letters, digits and `-`",
    "test-hook r.py:nothing": "It has: judged.",
    "test-hook r.py:judgd": "Did you mean 'judged'?",
    "test-hook statistics.py:mean": "has the name of a module of Python's own library",
    "test-hook my-r.py:judged": "my-r.py cannot be imported under that name; rename it",
    "fleet up nothing.yaml": "cannot be read: No such file or directory; give the file",
    "save cpu-smoke 'A b'": "name: has only small letters, digits and `-`",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_named_with_what_to_do(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.yaml").write_text("")
    (tmp_path / "tab.yaml").write_text("name:\tx\n")
    (tmp_path / "q.jsonl").write_text('{"question": "1+1", "answer": "2"}\n' * 60)
    for name in ("r.py", "my-r.py", "statistics.py"):
        (tmp_path / name).write_text("def judged(transcript):\n    return True\n")
    (tmp_path / "m").mkdir()
    assert _exit_code(*shlex.split(line)) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert MISTAKES[line] in told
    assert told.startswith("error: ")
    assert "Traceback" not in told


EMPTY = (
    "cancel ''", "resume ' '", "retry '' rl", "run ''", "compare a ''", "serve a ''", "runs ''",
    "sft --model m --data q.jsonl --name ''", "run cpu-smoke --name=", "artifacts pin ''",
)  # fmt: skip


@pytest.mark.parametrize("line", EMPTY)
def test_an_empty_word_is_no_word_that_is_left_out(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`cancel "$RUN"` would end the newest run."""
    new_run(load_recipe("cpu-smoke"), "post-train", {}, in_process=True)
    assert _exit_code(*shlex.split(line)) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert told.startswith("error: `tributary ")
    assert "is empty. Is a variable of the shell not set? Give it, or leave it out" in told


def test_no_regular_expression_stands_in_a_message() -> None:
    """Each name that a recipe bounds by a pattern has words for it."""
    text = json.dumps(Recipe.model_json_schema())
    patterns = {json.loads(f'"{found}"') for found in re.findall(r'"pattern": "([^"]*)"', text)}
    assert NAME_PATTERN in patterns
    known = re.compile(r"\^\(?\[a-z(0-9)?\](\[a-z0-9_?-\]\*)?\)?\??\$")
    secret = "^(secret:[A-Z][A-Z0-9_]*)?$"
    assert [each for each in patterns - {secret} if not known.fullmatch(each)] == []
    assert characters(secret).startswith("is empty or `secret:NAME`")
    assert characters(NAME_PATTERN).endswith("digits and `-`, and begins with a letter or digit")
    assert characters("^([a-z][a-z0-9-]*)?$").endswith("begins with a letter")


def test_ctrl_c_while_the_command_loads_ends_it_without_a_traceback() -> None:
    program = """
import os, signal, sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "cyclopts":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
from flows.command import begin
begin()
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, b"", b"")
