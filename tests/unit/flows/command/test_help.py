"""What `--help` says: every argument of every command is explained."""

from __future__ import annotations

import pytest

from flows.command.main import app, main

pytestmark = pytest.mark.unit

COMMANDS = [name for name in app if not name.startswith("-")]


def test_the_commands_are_found() -> None:
    assert {"init", "run", "check", "runs", "logs"} <= set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_argument_of_a_command_is_explained(command: str) -> None:
    arguments = app[command].assemble_argument_collection(parse_docstring=True)
    assert [a.name for a in arguments if not a.parameter.help] == []


@pytest.mark.parametrize("command", ["init", "run", "check", "logs"])
def test_help_ends_with_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert f"Examples:\n  tributary {command}" in capsys.readouterr().out
