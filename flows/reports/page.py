"""The report as one self-contained page: scores, bars, a timeline of stages, honest notes."""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path

from flows.reports.curve_chart import curve_chart, curve_table
from flows.reports.report import (
    Report,
    markdown_table,
    mean,
    notes,
    read_file,
    score_table,
    stage_table,
    training_table,
)
from flows.reports.timeline_picture import timeline_picture
from flows.rounds.promotion import table_of_rounds
from flows.running.records import RunRecord, StageRecord
from infra.home import home
from infra.trace_file import TRACE_FILE, Trace, read_trace

STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem}h2{font-size:1.1rem;margin-top:2rem}
h3{font-size:1rem;margin:1rem 0 0}code{background:#eef2f6;padding:.1rem .3rem}
table{border-collapse:collapse;width:100%}td,th{padding:.3rem .6rem;text-align:left;
border-bottom:1px solid #dde4ea}td:not(:first-child){font-variant-numeric:tabular-nums}
.bar,.span{background:#dde8f0;border-radius:3px;position:relative;height:1.1rem;min-width:8rem}
.bar i,.span i{position:absolute;top:0;bottom:0;left:0;background:#2477b3;border-radius:3px}
.span i{min-width:2px}.cached i{background:#9db4c4}.failed i{background:#c0392b}
"""


def report_path(run: str) -> Path:
    return home() / "reports" / f"{run}.html"


def write_page(record: RunRecord, report: Report) -> Path:
    """Write the page to the home; returns its path."""
    path = report_path(report.run)
    path.parent.mkdir(parents=True, exist_ok=True)
    stages = record.stages()
    traces = {
        name: read_trace(data)
        for name in report.curves
        if (data := read_file(record, stages[name], TRACE_FILE)) is not None
    }
    said = notes(report, record.recipe())
    path.write_text(render(report, stages, record.state().links, said, traces))
    return path


def render(
    report: Report,
    stages: dict[str, StageRecord],
    links: dict[str, str],
    said: list[str],
    traces: Mapping[str, Trace],
) -> str:
    """The page; `said` are the notes below the scores, `traces` the timelines of stages by name."""
    parts = [
        f"<h1>{_text(report.run)}</h1><p>{_text(report.state)} in {report.seconds:.0f} s</p>",
        "<p>"
        + " · ".join(f'<a href="{_text(u)}">{_text(t)}</a>' for t, u in links.items())
        + "</p>",
        "<h2>Scores (temperature 1)</h2>",
        _table(*score_table(report.scores)),
        "<h2>Mean over domains</h2>",
        _bars(report),
        "<h2>Scores (greedy)</h2>",
        _table(*score_table(report.greedy)),
        "<h2>First and last version, with 95% intervals</h2>",
        _table(*training_table(report)),
        "<h2>Notes</h2><ul>" + "".join(f"<li>{_text(n)}</li>" for n in said) + "</ul>",
        "<h2>Scores while training</h2>",
        _curves(report),
        "<h2>Timeline</h2>",
        _timeline(report, stages),
        "<h2>Timelines of stages</h2>",
        "".join(f"<h3>{_text(n)}</h3>{timeline_picture(t)}" for n, t in traces.items())
        or "<p>none</p>",
        "<h2>Stages</h2>",
        _table(*stage_table(report)),
        f"<p>Again as text: <code>tributary report {_text(report.run)}</code></p>",
    ]
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{_text(report.run)}</title>"
        f"<style>{STYLE}</style><body>{''.join(parts)}</body></html>"
    )


def markdown(report: Report, said: list[str]) -> str:
    """The same in short, for the Prefect page."""
    return "\n\n".join(
        [
            f"### {report.run}: {report.state} in {report.seconds:.0f} s",
            "#### Scores (temperature 1)",
            markdown_table(*score_table(report.scores)),
            "#### Scores (greedy)",
            markdown_table(*score_table(report.greedy)),
            "#### First and last version, with 95% intervals",
            markdown_table(*training_table(report)),
            *_markdown_rounds(report),
            *_markdown_curves(report),
            "#### Stages",
            markdown_table(*stage_table(report)),
            "\n".join(f"- {note}" for note in said),
        ]
    )


def _markdown_rounds(report: Report) -> list[str]:
    return ["#### Rounds", markdown_table(*table_of_rounds(report.rounds))] if report.rounds else []


def _markdown_curves(report: Report) -> list[str]:
    header, rows = curve_table(report.curves)
    return ["#### Scores while training", markdown_table(header, rows)] if rows else []


def _table(header: list[str], rows: list[list[str]]) -> str:
    if not rows:
        return "<p>none</p>"
    head = "".join(f"<th>{_text(cell)}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{_text(c)}</td>" for c in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _bars(report: Report) -> str:
    rows = "".join(
        f"<tr><td>{_text(model)}</td><td>{mean(row):.3f}</td>"
        f'<td><div class=bar><i style="width:{100 * mean(row):.1f}%"></i></div></td></tr>'
        for model, row in report.scores.items()
    )
    return f"<table>{rows}</table>"


def _curves(report: Report) -> str:
    charts = [
        f"<h3>{_text(name)}</h3>{curve_chart(curve)}" for name, curve in report.curves.items()
    ]
    header, rows = curve_table(report.curves)
    return ("".join(charts) or "<p>none</p>") + (_table(header, rows) if rows else "")


def _timeline(report: Report, stages: dict[str, StageRecord]) -> str:
    """Each stage's span on one axis; a resumed stage shows its last span."""
    shown = [stages[s.name] for s in report.stages if stages[s.name].started]
    if not shown:
        return "<p>none</p>"
    first = min(s.started for s in shown)
    length = max(max(s.started + s.seconds for s in shown) - first, 1e-9)
    rows = "".join(_span(s, 100 * (s.started - first) / length, 100 / length) for s in shown)
    return f"<table>{rows}</table>"


def _span(stage: StageRecord, left: float, percent_a_second: float) -> str:
    style = f"left:{left:.2f}%;width:{stage.seconds * percent_a_second:.2f}%"
    bar = f'<div class="span {stage.state}"><i style="{style}"></i></div>'
    return f"<tr><td>{_text(stage.name)}</td><td>{bar}</td><td>{stage.seconds:.1f} s</td></tr>"


def _text(value: str) -> str:
    return html.escape(value, quote=True)
