"""What `--help` says: every argument of every command is explained, and how it is used is shown."""

from __future__ import annotations

import re
from functools import reduce

import pytest

from flows.command.app import unwrapped
from flows.command.main import app, main

pytestmark = pytest.mark.unit

COMMANDS = [name for name in app if not name.startswith("-")]
WITH_ARGUMENTS = [
    (name, *inner)
    for name in COMMANDS
    for inner in ([()] if app[name].default_command else [(i,) for i in app[name] if i[0] != "-"])
]


def test_the_commands_are_found() -> None:
    assert {"init", "run", "check", "runs", "logs", "top", "cancel"} <= set(COMMANDS)


@pytest.mark.parametrize("command", WITH_ARGUMENTS, ids=" ".join)
def test_each_argument_of_a_command_is_explained(command: tuple[str, ...]) -> None:
    of = reduce(lambda owner, name: owner[name], command, app)
    arguments = of.assemble_argument_collection(parse_docstring=True)
    said = [a for a in arguments if a.name != "*"]  # what several commands share, as a whole
    assert [a.name for a in said if not a.parameter.help] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_help_ends_with_examples_that_are_whole_on_a_narrow_terminal(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    _, examples, shown = capsys.readouterr().out.partition("Examples:\n")
    assert examples
    lines = shown.rstrip().splitlines()
    assert lines
    assert [line for line in lines if not line.startswith(f"  tributary {command}")] == []
    assert [line for line in lines if len(line) > 80] == []


def test_a_docstring_s_lines_are_joined_and_its_arguments_are_not() -> None:
    text = "A\n    b.\n\n    c\n    d\n\n    Args:\n        one: e\n            f\n        two: g"
    assert unwrapped(text) == "A b.\n\n    c d\n\n    Args:\n        one: e f\n        two: g"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rnu"], "did you mean `run`; see `tributary --help`"),
        (["run"], "`tributary run` needs RECIPE; see `tributary run --help`"),
        (["rollouts", "--stpe", "3"], "Did you mean --step.*; see `tributary rollouts --help`"),
        (["rollouts", "--limit", "x"], "x is not a whole number; see `tributary rollouts --help`"),
        (["rollouts", "--limit", "2.5"], "--limit: 2.5 is not a whole number"),
        (["sft", "--model", "m", "--lr", "high"], "--lr: high is not a number"),
        (["sft", "--model", "m", "--held-out", "x"], "Unknown option: --held-out; `rl` has it"),
        (["reward", "--model", "m", "--loss", "ipo"], "Unknown option: --loss; `preference` has"),
        (["preview", "a", "--model", "m", "--limit", "1"], "--limit; .*`rollouts`.* have it"),
        (["logs", "a", "b", "c"], "takes no further words: c; see `tributary logs --help`"),
        (["artifacts", "gx"], "takes no further words: gx; see `tributary artifacts --help`"),
    ],
)
def test_a_wrong_word_ends_with_where_to_look(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    shown = " ".join(capsys.readouterr().err.split())
    assert ended.value.code == 2
    assert shown.startswith("error: ")
    assert re.search(said.replace("?", r"\?"), shown), shown
