"""Compares: `tributary compare` runs, `tributary diff` two recipes or runs."""

from __future__ import annotations

import json as json_text
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from flows.catalog import plan_of
from flows.command.app import CommandConsole, print_json, text_table
from flows.command.show import open_page
from flows.diff import Diff, Setting, compare_sides, side_of
from flows.plan import EVALUATE, LM_EVAL
from flows.reasons import value_text
from flows.reports.comparison import (
    Comparison,
    Spread,
    compare,
    compare_recipes,
    recipe_differences,
    require_scores,
    write_comparison,
)
from flows.reports.paired_tests import PairedScore, PairOfRuns, ScoredRun, pair_of
from flows.reports.report import Report, build_report, read_scores, read_task_scores
from flows.running.records import RunRecord, StageRecord, find_run, run_entries
from infra.errors import InputError
from infra.store.artifacts import ArtifactStore

_NAMED = 6
_KINDS = {"score": "t = 1", "greedy": "greedy", "task": "lm-eval"}
STATES = {"cached": "cached", "again": "runs again", "new": "runs: new", "gone": "not in B"}
_LONGEST = 100


def show_comparison(runs: Sequence[str], json: bool, open_: bool, console: CommandConsole) -> int:
    if len(runs) < 2:
        raise InputError("name the runs to compare, at least two: `tributary compare RUN RUN ...`")
    records = [find_run(run) for run in runs]
    _require_different(runs, records)
    reports = [_report(record) for record in records]
    require_scores(reports)
    first, *others = [_scored(record) for record in records]
    pairs = [pair_of(first, other) for other in others]
    different = recipe_differences([record.head() for record in records])
    found = compare_recipes(reports, pairs, different) if different else compare(reports, pairs)
    if json:
        print_json(found)
        return 0
    page = write_comparison(found, records, reports)
    _print(found, console)
    console.say(f"page: {page.as_uri()}")
    if open_:
        open_page(page, console)
    return 0


def _require_different(named: Sequence[str], records: Sequence[RunRecord]) -> None:
    """Raises InputError for a run that is named twice: it would only equal itself."""
    first: dict[str, str] = {}
    for name, record in zip(named, records, strict=True):
        if record.run in first:
            others = [e.run for e in run_entries() if name and e.is_called(name)][:_NAMED]
            raise InputError(
                f"{first[record.run]} and {name} are one run, {record.run}: name two runs by their"
                f" ids; called so: {', '.join(others)}"
            )
        first[record.run] = name


def _print(found: Comparison, console: CommandConsole) -> None:
    for run, lines in found.differences.items():
        console.say(
            f"warning: {run} is of another recipe than {found.runs[0]}, so nothing is averaged:"
        )
        for line in lines:
            console.say(f"  {line}")
    for equal in found.equal:
        console.say(
            f"warning: {', '.join(equal)} share one evaluation: they are equal, and count as"
            f" {len(equal)} runs below though they are one result"
        )
    if not found.differences:
        title = f"mean and standard deviation, n = {len(found.runs)} runs"
        tables = {"outcome at temperature 1": found.scores, "greedy": found.greedy}
        tables |= {f"best of {k}": spreads for k, spreads in found.best_of.items()}
        tables |= {f"outcome, {name}": spreads for name, spreads in found.sampled.items()}
        for what, spreads in tables.items():
            if spreads:
                console.print(_table(f"{what}: {title}", spreads))
        if found.tasks:
            console.print(_tasks(f"tasks of lm-eval: {title}", found.tasks))
        if found.gains:
            console.print(_gains(found.gains))
    for pair in found.pairs:
        if pair.scores:
            console.print(_pair(pair))
            if pair.same:
                console.say(f"one artifact in both runs, so not tested: {', '.join(pair.same)}")
        else:
            console.say(f"{pair.first} and {pair.second}: not compared in pairs: {pair.why_not}")


def _pair(pair: PairOfRuns) -> Table:
    table = Table(title=f"{pair.second} against {pair.first}, problem by problem")
    for header in ("model", "domain", "sampled", "scores"):
        table.add_column(header, no_wrap=True)
    for header in ("points (95%)", "better, worse, of", "p (adjusted)"):
        table.add_column(header)
    for score in pair.scores:
        table.add_row(
            escape(score.model),
            escape(score.domain),
            _KINDS.get(score.kind, score.kind),
            f"{score.first:.3f} → {score.second:.3f}",
            _difference(score),
            f"{score.better}, {score.worse}, {score.problems}",
            f"{score.p:.3f} ({score.p_adjusted:.3f})",
        )
    tests = ", ".join(sorted({score.test for score in pair.scores}))
    table.caption = f"{tests}; adjusted for {len(pair.scores)} tests (Holm)"
    return table


def _difference(score: PairedScore) -> str:
    return f"{100 * score.difference:+.1f} ({100 * score.low:+.1f} to {100 * score.high:+.1f})"


def _report(record: RunRecord) -> Report:
    head = record.head()
    plan = plan_of(head.flow, record.recipe(), head.arguments)
    return build_report(record, plan)


def _scored(record: RunRecord) -> ScoredRun:
    """The run's evaluations as their artifacts have them."""
    stage, of_tasks = record.stage(EVALUATE), record.stage(LM_EVAL)
    digest = "/".join(each.digest for each in (stage, of_tasks) if each)
    settings, models = _settings(record, stage)
    task_settings, task_models = _settings(record, of_tasks)
    return ScoredRun(
        record.run, digest, settings, read_scores(record, stage),
        task_settings, read_task_scores(record), models | task_models,
    )  # fmt: skip


def _settings(
    record: RunRecord, stage: StageRecord | None
) -> tuple[Mapping[str, Any], dict[str, str]]:
    """Return a stage's settings and the models that it scored, as its artifact has them; empty
    without one."""
    artifacts = ArtifactStore(record.store)
    manifest = artifacts.manifest(stage.kind, stage.digest) if stage else None
    return (manifest.identity, dict(manifest.inputs)) if manifest else ({}, {})


def _table(title: str, rows: Mapping[str, Mapping[str, Spread]]) -> Table:
    domains = list(dict.fromkeys(domain for row in rows.values() for domain in row))
    cells = [
        [model, *(_cell(row.get(domain)) for domain in domains)] for model, row in rows.items()
    ]
    return text_table(["model", *domains], cells, title)


def _tasks(title: str, rows: Mapping[str, Mapping[str, Spread]]) -> Table:
    """Tasks by row, as there may be many."""
    tasks = list(dict.fromkeys(task for row in rows.values() for task in row))
    cells = [[task, *(_cell(row.get(task)) for row in rows.values())] for task in tasks]
    return text_table(["lm-eval task", *rows], cells, title)


def _cell(spread: Spread | None) -> str:
    if spread is None:
        return ""
    return f"{spread.mean:.3f} {'(all equal)' if spread.is_equal else f'± {spread.deviation:.3f}'}"


def _gains(gains: Mapping[str, Mapping[str, Spread]]) -> Table:
    rows = [
        [
            model,
            domain,
            f"{100 * spread.mean:+.1f} ± {100 * spread.deviation:.1f}",
            _errors(spread),
            ", ".join(f"{100 * value:+.1f}" for value in spread.values),
        ]
        for model, row in gains.items()
        for domain, spread in row.items()
    ]
    header = ["expert", "domain", "gain", "standard errors", "each run"]
    return text_table(header, rows, "last version over first")


def _errors(spread: Spread) -> str:
    if spread.is_equal:
        return "all equal"
    return "" if spread.standard_errors is None else f"{spread.standard_errors:.1f}"


def show_diff(a: str, b: str, changes: Sequence[str], json: bool, console: CommandConsole) -> int:
    """The changes are B's; without B, it is A with them. Raises InputError without either."""
    if not b and not changes:
        raise InputError(
            f"diff {a}: nothing to compare it with; name a second recipe or run, or write a change"
            " as --set FIELD=VALUE"
        )
    found = compare_sides(side_of(a, [], "A"), side_of(b or a, changes, "B"))
    if json:
        print_json(found)
        return 0
    for line in [*_settings_of_diff(found), *_stages(found)]:
        console.say_line(line)
    return 0


def _settings_of_diff(found: Diff) -> list[str]:
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
    """Yield a line a stage, and one for each further reason."""
    again = [fate.stage for fate in found.stages if fate.state in ("again", "new")]
    said = f"{len(again)} of B's stages run" if again else "no stage runs"
    yield f"Given what A has made, {said}:"
    name = max(len(fate.stage) for fate in found.stages)
    state = max(map(len, STATES.values()))
    for fate in found.stages:
        first, *more = [f"{why.part}: {why.text}" for why in fate.reasons] or [""]
        yield f"  {fate.stage:{name}}  {STATES[fate.state]:{state}}  {first}".rstrip()
        yield from (f"  {'':{name}}  {'':{state}}  {reason}" for reason in more)
