"""Lets a person compare answers of a stage: `tributary label`."""

from __future__ import annotations

import getpass
import webbrowser
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines.rollout.records.dataset import DATA_FILE, ParquetRows
from engines.rollout.records.packing import load_problem, load_turns
from engines.types import Message, Problem
from flows.command.output import CommandConsole
from flows.command.samples import find_samples
from flows.reports.labelling import LabelPage, Labels, comparisons_of
from flows.reports.live import serve_page
from infra.errors import InputError


def label(
    artifact: str, run: str, to: str, by: str, root: str, open_: bool, console: CommandConsole
) -> int:
    """Until Ctrl-C. Raises InputError where there is nothing to compare."""
    found = find_samples(artifact, run, root, lambda name: True)
    if found.file.name != DATA_FILE:
        raise InputError(
            f"{found.record.name} keeps rollouts as tokens; name a `distill` stage, with"
            " `samples: 2` or more and `min_outcome: 0`, whose answers can be compared and learned"
        )
    rows = ParquetRows(found.file).columns(("problem", "turns", "expert", "artifact_digest"))
    comparisons, left_out = comparisons_of(map(_Row.of, rows))
    if not comparisons:
        raise InputError(
            f"{found.record.name} has no problem with two different answers; give `distill`"
            " `samples: 2` or more, `min_outcome: 0` to keep wrong ones, and `near_duplicate: 1` to"
            " keep short ones"
        )
    labels = Labels(_place(to), by or _user())
    done = sum(each.id in labels.done for each in comparisons)
    console.say(
        f"{found.record.name}: two answers to each of {len(comparisons)} problems, {done} done;"
        f" {left_out} more have no two that could be compared and learned"
    )

    def told(link: str) -> None:
        console.say(f"choices go to {to}, until Ctrl-C (the link works once): {link}")
        if open_:
            webbrowser.open(link)

    try:
        serve_page(LabelPage(comparisons, labels).app, told)
    except KeyboardInterrupt:
        pass
    finally:
        labels.close()
    return 0


@dataclass(frozen=True, slots=True)
class _Row:
    """A row without its tokens."""

    problem: Problem
    turns: tuple[Message, ...]
    expert: str
    artifact_digest: str

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> _Row:
        problem, turns = load_problem(raw["problem"]), load_turns(raw["turns"])
        return cls(problem, turns, raw["expert"], raw["artifact_digest"])


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        raise InputError("--by: this user has no name; say who chooses, e.g. --by ada") from None


def _place(to: str) -> Path:
    file = Path(to).expanduser()
    if file.suffix != ".jsonl":
        raise InputError(f"--to {to}: name a file that ends with .jsonl")
    if file.is_dir() or not file.absolute().parent.is_dir():
        raise InputError(f"--to {to}: its folder is not there, or it is a folder itself")
    return file
