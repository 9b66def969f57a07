"""`tributary compare`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from flows.catalog import plan_of
from flows.command.output import print_json
from flows.reports.comparison import Spread, compare, require_one_recipe
from flows.reports.report import Report, build_report
from flows.running.records import RunRecord, find_run
from infra.errors import InputError


def show_comparison(runs: Sequence[str], json: bool, console: Console) -> int:
    if not runs:
        raise InputError("name the runs to compare: `tributary compare RUN RUN ...`")
    records = [find_run(run) for run in runs]
    require_one_recipe([record.head() for record in records])
    found = compare([_report(record) for record in records])
    if json:
        print_json(found)
        return 0
    for equal in found.equal:
        console.print(
            f"warning: {', '.join(equal)} share one evaluation: they are equal, and count as"
            f" {len(equal)} runs below though they are one result",
            markup=False, highlight=False, soft_wrap=True,
        )  # fmt: skip
    title = f"mean and standard deviation, n = {len(runs)} runs"
    console.print(_table(f"outcome at temperature 1: {title}", found.scores))
    console.print(_table(f"greedy: {title}", found.greedy))
    for k, spreads in found.best_of.items():
        console.print(_table(f"best of {k}: {title}", spreads))
    console.print(_gains(found.gains))
    return 0


def _report(record: RunRecord) -> Report:
    head = record.head()
    plan = plan_of(head.flow, record.recipe(), head.arguments)
    return build_report(record, plan)


def _table(title: str, rows: Mapping[str, Mapping[str, Spread]]) -> Table:
    domains = list(dict.fromkeys(domain for row in rows.values() for domain in row))
    table = Table("model", *domains, title=title)
    for model, row in rows.items():
        table.add_row(model, *(_cell(row.get(domain)) for domain in domains))
    return table


def _cell(spread: Spread | None) -> str:
    if spread is None:
        return ""
    return f"{spread.mean:.3f} {'(all equal)' if spread.is_equal else f'± {spread.deviation:.3f}'}"


def _gains(gains: Mapping[str, Mapping[str, Spread]]) -> Table:
    table = Table(
        "expert",
        "domain",
        "gain",
        "standard errors",
        "each run",
        title="last version over first",
    )
    for model, row in gains.items():
        for domain, spread in row.items():
            table.add_row(
                model,
                domain,
                f"{100 * spread.mean:+.1f} ± {100 * spread.deviation:.1f}",
                _errors(spread),
                ", ".join(f"{100 * value:+.1f}" for value in spread.values),
            )
    return table


def _errors(spread: Spread) -> str:
    if spread.is_equal:
        return "all equal"
    return "" if spread.standard_errors is None else f"{spread.standard_errors:.1f}"
