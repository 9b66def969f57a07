"""`tributary diff`."""

from __future__ import annotations

import json as json_text
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console

from flows.command.output import print_json
from flows.diff.compare import Diff, Setting, StageFate, compare
from flows.diff.side import side_of
from flows.reasons import value_text

STATES = {"cached": "cached", "again": "runs again", "new": "runs: new", "gone": "not in B"}
_LONGEST = 100


def show_diff(a: str, b: str, changes: Sequence[str], json: bool, console: Console) -> int:
    """The changes are B's; without B, it is A with them."""
    found = compare(side_of(a, [], "A"), side_of(b or a, changes, "B"))
    if json:
        print_json(found)
        return 0
    for line in [*_settings(found), *_stages(found)]:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return 0


def _settings(found: Diff) -> list[str]:
    if not found.settings:
        return ["The settings are the same."]
    lines = [f"{len(found.settings)} settings differ (A -> B):"]
    return lines + [f"  {s.path}: {_value(s, 'a')} -> {_value(s, 'b')}" for s in found.settings]


def _value(setting: Setting, side: Any) -> str:
    if side not in setting.values:
        return "not there"
    value = setting.values[side]
    text = json_text.dumps(value) if isinstance(value, dict | list) else value_text(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _stages(found: Diff) -> Iterator[str]:
    """A line a stage, and one for each further reason."""
    again = [fate.stage for fate in found.stages if fate.state in ("again", "new")]
    said = f"{len(again)} of B's stages run" if again else "no stage runs"
    yield f"Given what A has made, {said}:"
    name = max(len(fate.stage) for fate in found.stages)
    state = max(map(len, STATES.values()))
    for fate in found.stages:
        first, *more = _why(fate) or [""]
        yield f"  {fate.stage:{name}}  {STATES[fate.state]:{state}}  {first}".rstrip()
        yield from (f"  {'':{name}}  {'':{state}}  {reason}" for reason in more)


def _why(fate: StageFate) -> list[str]:
    return [f"{reason.part}: {reason.text}" for reason in fate.reasons]
