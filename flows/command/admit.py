"""`tributary admit`: which problems of a domain are fit to train on."""

from __future__ import annotations

import asyncio
import json as json_format
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from curricula.built_in_curricula import build
from curricula.splits import Admissible
from engines.types import Split
from flows.checks.hook_checks import own_files
from flows.command.app import CommandConsole, print_json
from flows.explain import nearest
from flows.load import load_recipe
from infra.errors import InputError
from tasks.admit.admission import CAUSES, Finding, admit
from tasks.domain import Domain
from tasks.live_domain import open_domain


def show_admission(
    recipe: str,
    domain: str,
    split: Split,
    count: int,
    seed: int,
    to: str,
    json: bool,
    console: CommandConsole,
) -> int:
    if count < 1:
        raise InputError(f"--count {count}: try at least 1 problem")
    if to:
        _check_new(Path(to))
    loaded = load_recipe(recipe)
    own_files(loaded)
    found = asyncio.run(_findings(_domain(loaded.domains, domain), split, count, seed))
    if to:
        Path(to).write_text("".join(f"{json_format.dumps(_plain(f))}\n" for f in found))
    refused = [finding for finding in found if not finding.is_admitted]
    if json:
        print_json([_plain(finding) for finding in found])
        return 1 if refused else 0
    if refused:
        console.print(_table(refused))
    console.say(f"{len(found) - len(refused)} of {len(found)} problems are admitted")
    for cause, times in Counter(f.refusals[0].cause for f in refused).most_common():
        console.say(f"  {times} refused: {CAUSES[cause]}")
    return 1 if refused else 0


def _check_new(file: Path) -> None:
    """Before minutes go into what would be written there."""
    if file.exists():
        raise InputError(f"--to {file}: there is such a file; move it, or give another name")
    if not os.access(file.absolute().parent, os.W_OK):
        raise InputError(f"--to {file}: {file.absolute().parent} is no folder to write to; make it")


def _domain(domains: Sequence[Domain], name: str) -> Domain:
    """The named one, or the only one that can be tried."""
    if name:
        chosen = [domain for domain in domains if domain.name == name]
    else:
        chosen = [domain for domain in domains if _can_be_tried(domain)]
    names = [domain.name for domain in domains]
    if name and not chosen:
        raise InputError(
            f"--domain {name}: the recipe has no such domain{nearest(name, names)}; it has"
            f" {', '.join(names) or 'none'}"
        )
    if len(chosen) != 1:
        raise InputError(
            f"--domain was not given, and {len(chosen)} domains of the recipe can be tried: name"
            f" one of {', '.join(names)} whose curriculum has `solution` and `secrets`"
        )
    return chosen[0]


def _can_be_tried(domain: Domain) -> bool:
    named = domain.curriculum
    return isinstance(build(named.name, named.options, named.mcp), Admissible)


async def _findings(domain: Domain, split: Split, count: int, seed: int) -> list[Finding]:
    opened = open_domain(domain)
    curriculum = opened.live.curriculum
    try:
        for process in opened.processes:
            await process.start()
        problems = curriculum.problems(split, count, seed)
        return await admit(
            curriculum,
            opened.environment,
            opened.live.judge,
            problems,
            turns=domain.max_turns,
        )
    finally:
        for process in opened.processes:
            await process.close()


def _plain(finding: Finding) -> dict[str, object]:
    return {
        "id": finding.problem.id,
        "admitted": finding.is_admitted,
        "reasons": finding.reasons,
    }


def _table(refused: Sequence[Finding]) -> Table:
    table = Table("problem", "refused because")
    for finding in refused:
        table.add_row(finding.problem.id, "; ".join(finding.reasons))
    return table
