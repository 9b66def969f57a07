"""`tributary sessions diff`: what harnesses sent, what was sampled, and how the two differ."""

from __future__ import annotations

import json as json_module
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from rich.text import Text

from engines.rollout.records.gallery import ROLLOUTS_FILE, RolloutRow
from engines.rollout.records.parquet_rows import ParquetRows
from flows.command.find_samples import find_samples
from flows.command.output import CommandConsole, print_json
from flows.command.ranges import Range
from infra.errors import InputError
from infra.shown_text import shown


@dataclass(frozen=True, slots=True)
class ShownSession:
    """One sample of a rollout that a harness had: its turns, in the order of its tokens."""

    label: str
    rollout: str
    problem: str
    status: str
    reward: float
    turns: list[dict[str, Any]]
    """as the session noted them, each with what was `sampled`"""
    whole: Mapping[str, Any]
    """counts of the whole session; empty but for the first sample of a rollout"""

    @classmethod
    def of(cls, row: RolloutRow) -> ShownSession:
        note = json_module.loads(row.session)
        edges = [0, *row.cuts, len(row.response)]
        written = [row.response[begin:end] for begin, end in pairwise(edges)][::2]
        turns = [
            {**turn, "sampled": text} for turn, text in zip(note["turns"], written, strict=False)
        ]
        return cls(
            label=row.label,
            rollout=row.rollout_id,
            problem=row.problem_id,
            status=row.status,
            reward=row.reward,
            turns=turns,
            whole=note.get("whole", {}),
        )


def show_sessions(
    artifact: str, run: str, step: str, limit: int, root: str, json: bool, console: CommandConsole
) -> int:
    """Raises InputError where there are none."""
    if limit < 1:
        raise InputError(f"--limit {limit}: how many samples to show, from 1")
    steps = Range.of("--step", step)
    found = find_samples(artifact, run, root, lambda name: True)
    rows = ParquetRows(found.file)
    there = found.file.name == ROLLOUTS_FILE
    known = rows.columns(("label", "session")) if there else []
    numbers = [n for n, row in enumerate(known) if row.get("session") and _is_of(row, steps)]
    if not numbers:
        raise InputError(
            f"artifact {found.record.name} has no such sessions: its rollouts were run by a driver"
            " without the gateway. `tributary rollouts` shows them"
        )
    sessions = (ShownSession.of(RolloutRow(**rows.row(number))) for number in numbers[:limit])
    if json:
        shown = [{n: getattr(s, n) for n in s.__slots__} for s in sessions]
        print_json({"run": found.run, "stage": found.stage, "sessions": shown})
        return 0
    for session in sessions:
        _show(session, console)
    console.say(f"{min(limit, len(numbers))} of {len(numbers)} samples are shown")
    return 0


def _is_of(row: Mapping[str, Any], steps: Range | None) -> bool:
    last = row["label"].rpartition(" ")[2]
    return steps is None or (last.isdecimal() and int(last) in steps)


def _show(session: ShownSession, console: CommandConsole) -> None:
    console.rule(f"{session.label} \u00b7 {session.rollout} \u00b7 {session.problem}", align="left")
    console.say(f"{session.status} \u00b7 reward {session.reward:.3f}")
    for name in ("kinds", "drift", "asked"):
        if session.whole.get(name):
            said = ", ".join(f"{key} {value}" for key, value in session.whole[name].items())
            console.say_line(f"{name}: {said}")
    for turn in session.turns:
        console.print(_turn(turn), soft_wrap=True)


def _turn(turn: Mapping[str, Any]) -> Text:
    text = Text(f"turn {turn['turn']} after {turn['after']}: {turn['kind']}\n", "bold")
    for role, sent in turn["sent"]:
        text.append(f"  sent, {role}: {shown(sent)}\n", "dim")
    text.append(f"  sampled: {shown(turn['sampled'])}\n", "green")
    if "drift" in turn:
        text.append(f"  came back with {', '.join(turn['drift'])}\n", "yellow")
    if "came_back" in turn:
        text.append(f"  - {shown(turn['said'])}\n", "green")
        text.append(f"  + {shown(turn['came_back'])}\n", "yellow")
    return text
