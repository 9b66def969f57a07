"""Writes the report as one self-contained page, with how to make the run again.

What it says in short is also the run's markdown. The page of a run that goes on can be served on
this machine, made anew whenever the run has changed: it shows and changes nothing, and asks for the
home's key as every server does.
"""

from __future__ import annotations

import asyncio
import hashlib
import shlex
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.load import as_yaml
from flows.plan import EVALUATE, PlannedStage
from flows.post_train import table_of_rounds
from flows.recipe import Recipe
from flows.reports.charts import charts_of, curve_table, pathology_table, scaling_charts
from flows.reports.outcome import (
    outcome_of,
    score_tables,
    state_line,
    task_tables,
    warning_lines,
    what_training_did,
)
from flows.reports.pipeline_chart import RiverStage, river
from flows.reports.rendering import render, seconds_text
from flows.reports.report import (
    Report,
    build_report,
    context_notes,
    read_task_scores,
    score_table,
    stage_table,
    task_table,
    training_table,
)
from flows.reports.shown_samples import read_pieces, read_samples, sample_set
from flows.reports.stage_view import WHAT, StageView, counted, failure_of, seconds_of, stage_views
from flows.reports.timeline_chart import timeline_picture
from flows.running.chosen_stages import chosen_of
from flows.running.records import RunHead, RunRecord
from infra.access import LOOPBACK, required_key
from infra.errors import TributaryError
from infra.guard import Asgi, Guard, Message, Receive, Send, login_link
from infra.home import home, write_whole
from infra.shown_text import markdown_table, markdown_text, shown_line
from tasks.durable.launch import log_path

if TYPE_CHECKING:
    import uvicorn


def report_path(run: str) -> Path:
    return home() / "reports" / f"{run}.html"


def write_page(record: RunRecord, report: Report, plan: Sequence[PlannedStage]) -> Path:
    """Write the page to the home; returns its path."""
    path = report_path(report.run)
    write_whole(path, page(record, report, plan).encode(errors="replace"))
    return path


def page(record: RunRecord, report: Report, plan: Sequence[PlannedStage], version: str = "") -> str:
    """The whole page as HTML; one that is served has a `version`, and asks for the newest."""
    views = stage_views(record, plan)
    head, recipe, state = record.head(), record.recipe(), record.state()
    scores = next((v.scores for v in views if v.name == EVALUATE), {})
    tables = score_tables(report, scores)
    times = {view.name: seconds_of(view) for view in views}
    rows = read_samples(record, views)
    samples = sample_set(rows, report.versions, read_pieces(record, views) if rows else None)
    curves = {view.name: view.curve_so_far for view in views} | report.curves
    charts, scaling = charts_of(views, curves), scaling_charts(report.scaling)
    return render(
        "report.html",
        report=report,
        version=version,
        recipe=recipe,
        started=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(head.created)),
        links={title: url for title, url in state.links.items() if title != "report"},
        failure=failure_of(report.run, state, views),
        outcome=outcome_of(report, scores),
        notes=context_notes(report, recipe),
        rounds=table_of_rounds(report.rounds) if report.rounds else None,
        river=river([_river_stage(view) for view in views]),
        pathologies=pathology_table(report.pathologies),
        tables=[*tables, *task_tables(read_task_scores(record))],
        charts=charts,
        scaling=scaling,
        all_charts=charts | {f"scaling/{domain}": drawn for domain, drawn in scaling.items()},
        spans=spans_of(views),
        what=WHAT,
        seconds={name: taken for name, taken in times.items() if taken is not None},
        timelines={v.name: timeline_picture(v.trace) for v in views if v.trace is not None},
        samples=samples,
        counted=counted(views),
        views=views,
        origin=origin_of(head, recipe, views),
    )


def _river_stage(view: StageView) -> RiverStage:
    stage = view.record
    seconds = "" if stage.state == "cached" else seconds_text(stage.seconds_at(time.time()))
    about = [f"{stage.name}: {stage.kind}, {stage.state}", stage.digest[:12], stage.message]
    return RiverStage(
        view.name, view.planned.kind, stage.state, seconds if stage.started else "",
        view.planned.expert, list(dict.fromkeys(view.planned.inputs.values())),
        "\n".join(part for part in about if part),
    )  # fmt: skip


def spans_of(views: Sequence[StageView]) -> list[dict[str, Any]]:
    """Return when each stage that ran did so, in percent of the run; a resumed stage has its last
    span."""
    ran = [v.record for v in views if v.record.started and not v.record.cached]
    if not ran:
        return []
    now = time.time()
    first = min(s.started for s in ran)
    last_go = {s.name: s.seconds_at(now) - s.before for s in ran}
    length = max(max(s.started + last_go[s.name] for s in ran) - first, 1e-9)
    return [
        {
            "name": s.name, "state": s.state, "seconds": s.seconds_at(now),
            "left": 100 * (s.started - first) / length,
            "width": 100 * last_go[s.name] / length,
        }
        for s in ran
    ]  # fmt: skip


def markdown(report: Report, said: list[str]) -> str:
    """Write the page in short, for the Prefect page."""
    warnings = [f"- **{markdown_text(line)}**" for line in warning_lines(report)]
    return "\n\n".join(
        [
            f"### {markdown_text(state_line(report))}",
            *(["#### Warnings", "\n".join(warnings)] if warnings else []),
            *([f"**{markdown_text(verdict)}**"] if (verdict := what_training_did(report)) else []),
            *_markdown_tables(report),
            "#### Stages",
            markdown_table(*stage_table(report)),
            "\n".join(f"- {markdown_text(note)}" for note in said),
        ]
    )


def _markdown_tables(report: Report) -> list[str]:
    """Return the tables that have rows, each under its title."""
    tables = {
        "Scores (temperature 1)": score_table(report.scores, report.no_verdict),
        "Scores (greedy)": score_table(report.greedy),
        **{
            f"Scores ({name})": score_table(of.scores, of.no_verdict)
            for name, of in report.sampled.items()
        },
        "First and last version, with 95% intervals": training_table(report),
        "Broken answers": pathology_table(report.pathologies),
        "Tasks of lm-eval": task_table(report.tasks),
        "Rounds": table_of_rounds(report.rounds),
        "Scores while training": curve_table(report.curves),
    }
    shown = {title: table for title, table in tables.items() if table[1]}
    return [
        line for title, table in shown.items() for line in (f"#### {title}", markdown_table(*table))
    ]


@dataclass(frozen=True, slots=True)
class Origin:
    """What the artifacts of a run were made by."""

    recipe: str
    """YAML; fields at their default are left out"""
    seed: int
    commands: Sequence[str]
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    machine: Mapping[str, str] = field(default_factory=dict[str, str])
    is_dirty: bool = False
    """some stage was made with files that no commit has"""


def origin_of(head: RunHead, recipe: Recipe, views: Sequence[StageView]) -> Origin:
    made = [view.manifest for view in views if view.manifest is not None]
    newest = max(made, key=lambda manifest: manifest.created, default=None)
    code: Mapping[str, Any] = newest.code if newest else {}
    commit = str(code.get("commit") or "")
    written = recipe.model_dump(mode="json", exclude_defaults=True)
    versions = {"tributary": str(code.get("version", ""))} if newest else {}
    return Origin(
        recipe=as_yaml(written),
        seed=recipe.seed,
        commands=_commands(head, recipe, commit),
        versions=versions | dict(newest.libraries if newest else {}),
        machine=newest.machine if newest else {},
        is_dirty=any(manifest.code.get("dirty") for manifest in made),
    )


def _commands(head: RunHead, recipe: Recipe, commit: str) -> list[str]:
    checkout = [f"git checkout {shlex.quote(commit[:12])}"] if commit else []
    file = f"{recipe.name}.yaml"
    given = head.arguments
    match head.flow:
        case "post-train":
            words = ["run", file, *_of_stages(given)]
        case "expert":
            words = ["run", file, "--expert", given["name"], *_of_stages(given)]
        case "distill-rounds":
            rounds = int(given.get("after", 0)) + int(given["rounds"])  # of a home without any
            words = ["rounds", file, "--expert", given["expert"], "--rounds", rounds]
        case "replay":
            words = ["replay", given["stage"], "--run", head.run]
        case _:
            words = ["up"]
    run = _command(*words)
    if "models" in given:  # `evaluate`, which has a form alone
        models = ", ".join(f"{name}={folder}" for name, folder in given["models"].items())
        run += shown_line(f"  # then the form of `{head.flow}`: this recipe, models {models}")
    return [*checkout, "make install", run, _command("report", head.run, "--open")]


def _command(*words: object) -> str:
    """For a shell that somebody pastes it into: no name in it is a command of its own."""
    return shlex.join(["tributary", *map(str, words)])


def _of_stages(arguments: Mapping[str, Any]) -> list[str]:
    """The options by which a run did some of its stages."""
    chosen = chosen_of(arguments)
    one = {"from": chosen.from_stage, "until": chosen.until_stage, "only": chosen.only_stage}
    options = [word for name, stage in one.items() if stage for word in (f"--{name}", stage)]
    options += [word for stage in chosen.force_stages for word in ("--force", stage)]
    return [*options, *(["--accept-code"] if chosen.accept_code else [])]


@dataclass(slots=True)
class LivePage:
    """The app behind the key; keeps the newest page, as several browsers may ask for it."""

    record: RunRecord
    plan: Sequence[PlannedStage]
    _version: str = ""
    _page: str = ""

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        status, kind, text = await asyncio.to_thread(self._answer, scope)
        headers = {
            "content-type": f"{kind}; charset=utf-8",
            "cache-control": "no-store",
            "x-content-type-options": "nosniff",
        }
        named = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": named})
        await send({"type": "http.response.body", "body": text.encode(errors="replace")})

    def _answer(self, scope: Message) -> tuple[int, str, str]:
        """-> status, type, content."""
        if scope["type"] != "http" or scope["method"] != "GET":
            return 405, "text/plain", "405: this page shows a run and changes nothing\n"
        try:
            match scope["path"]:
                case "/":
                    return 200, "text/html", self._newest()
                case "/version":
                    return 200, "text/plain", self.version()
                case _:
                    return 404, "text/plain", "404: there is one page here, /\n"
        except TributaryError as error:  # its store is out of reach for a moment
            return 503, "text/plain", f"503: {error}\n"

    def version(self) -> str:
        """Another one whenever there is more to show."""
        stages = self.record.stages().values()
        said = [self.record.state().model_dump_json(), *(s.model_dump_json() for s in stages)]
        logs = [log_path(s.job) for s in stages if s.job and not s.is_done]
        said += [str(log.stat().st_size) for log in logs if log.is_file()]
        return hashlib.sha256("\n".join(said).encode()).hexdigest()[:16]

    def _newest(self) -> str:
        version = self.version()
        if version != self._version:
            report = build_report(self.record, self.plan)
            self._page, self._version = page(self.record, report, self.plan, version), version
        return self._page


def page_server(app: Asgi) -> uvicorn.Server:
    """Puts an app behind the home's key; runs on whatever sockets it is given."""
    from uvicorn import Config, Server

    from infra.processes.http_heads import BoundedHeads

    guarded = Guard(app, required_key(), LOOPBACK, ())
    return Server(
        Config(guarded, log_level="warning", access_log=False, lifespan="off", http=BoundedHeads)
    )


def serve_page(app: Asgi, told: Callable[[str], None]) -> None:
    """Serve an app on this machine until Ctrl-C. `told` gets the link that lets a browser in."""
    server = page_server(app)
    with socket.socket() as listening:
        listening.bind((LOOPBACK, 0))
        listening.listen()  # a browser that comes before the server waits for it
        told(login_link(f"http://{LOOPBACK}:{listening.getsockname()[1]}/"))
        server.run(sockets=[listening])
