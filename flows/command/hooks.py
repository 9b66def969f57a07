"""`tributary test-hook`: the contract that a part of the user's own must keep."""

from __future__ import annotations

import json as json_text
import sys
from pathlib import Path
from typing import Any, get_args

from rich.markup import escape

from engines.algorithms.parts import Need
from flows.checks.contracts import faults_of
from flows.checks.trial.parts import findings_about
from flows.command.hook_kinds import (
    CONTRACTS,
    OF_DOMAIN,
    Kind,
    curriculum_beside,
    kind_named,
    kind_of,
)
from flows.command.output import CommandConsole, print_json
from infra.errors import InputError
from infra.user_files import install_hooks, read_hooks


def show_hook(
    path: str,
    kind: str,
    options: str,
    needs: str,
    domains: str,
    curriculum: str,
    json: bool,
    console: CommandConsole,
) -> int:
    """Print each broken promise; 0 if there is none, 1 otherwise."""
    declared, given = _needs(needs), _options(options)
    wanted = kind_named(kind) if kind else None
    name = _importable(path)
    found = wanted or kind_of(name)
    faults, notes = _tried(found, name, given, declared, _listed(domains), curriculum)
    if json:
        said = {"name": name, "kind": found, "keeps": not faults}
        print_json(said | {"faults": faults, "notes": notes})
        return 1 if faults else 0
    for note in notes:
        console.print(f"[yellow]note[/] {escape(note)}", highlight=False)
    for fault in faults:
        console.print(f"[red]fails[/] {escape(fault)}", highlight=False)
    if not faults:
        console.print(f"[green]keeps the contract[/] of a custom {found}: {name}")
    return 1 if faults else 0


def _tried(
    kind: Kind,
    name: str,
    options: dict[str, Any],
    needs: list[Need],
    domains: list[str],
    curriculum: str,
) -> tuple[list[str], list[str]]:
    """Broken promises, and what is only to be known."""
    if of_domain := OF_DOMAIN.get(kind):
        tried_on = curriculum or curriculum_beside(name)
        found = findings_about(of_domain, name, options, tried_on)
        return list(found.problems), list(found.cautions)
    faults = faults_of(CONTRACTS[kind], name, options, needs=needs, domains=domains)
    return [f"{fault.check}: {fault.saw}" for fault in faults], []


def _importable(path: str) -> str:
    """`module:attribute`, also found in the command's folder, or `file.py:attribute`."""
    file, colon, attribute = path.partition(":")
    if not colon or not attribute:
        raise InputError(f"test-hook: {path!r} is not of the form `module:function`")
    if file.endswith(".py"):
        install_hooks(read_hooks([file]))
        return f"{Path(file).stem}:{attribute}"
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    return path


def _needs(text: str) -> list[Need]:
    given = _listed(text)
    if unknown := set(given) - set(get_args(Need)):
        raise InputError(
            f"test-hook: --needs has {', '.join(sorted(unknown))}; it is a list, separated by"
            f" commas, of {', '.join(get_args(Need))}"
        )
    return [need for need in get_args(Need) if need in given]


def _listed(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _options(text: str) -> dict[str, Any]:
    try:
        found = json_text.loads(text or "{}")
    except json_text.JSONDecodeError as error:
        raise InputError(f"test-hook: --options is not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise InputError("test-hook: --options must be a JSON object, e.g. '{\"beta\": 0.1}'")
    return found
