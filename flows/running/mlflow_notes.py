"""What a run and its stages say of themselves in MLflow: descriptions in markdown, and datasets."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from flows.plan import PlannedStage
from flows.reports.outcome import Best
from flows.reports.report import Scores, domains_of
from infra.shown_text import markdown_code, markdown_link, markdown_text, table_of_markdown
from infra.store.artifacts import ArtifactRecord
from infra.tracking.rest import Dataset

_HEADLINES = (
    "outcome_first",
    "outcome_last",
    "eval_outcome_first",
    "eval_outcome_last",
    "loss",
    "rows",
    "tried",
    "admitted",
    "outcome_mean",
    "steps",
    "solved",
)
"""what is said of a finished stage, where it has it"""
_MOST_SCORES = 24


@dataclass(frozen=True, slots=True)
class Source:
    """A stage that another was made from."""

    stage: str
    page: str
    """its MLflow run's; empty if it has none"""


def stage_note(
    run: str,
    planned: PlannedStage,
    sources: Mapping[str, Source],
    links: Mapping[str, str],
    record: ArtifactRecord | None = None,
    origin: str = "",
) -> str:
    """The outcome first, once it is `record`ed; then where it comes from and where to read on.
    `origin` is the page of the run that made a cached stage."""
    rows = [[markdown_text(r), markdown_link(s.stage, s.page)] for r, s in sources.items()]
    rows += [["makes", f"a version of {markdown_text(planned.model)}"]] if planned.model else []
    rows += [["artifact", markdown_code(record.url)]] if record else []
    rows += [["made by", markdown_link("another run", origin)]] if origin else []
    rows += [[markdown_text(t), markdown_link(t, page)] for t, page in links.items()]
    rows += [["log", markdown_code(f"tributary logs {run} {planned.name}")]]
    table = table_of_markdown(["from and to", ""], rows)
    outcome = _outcome(record) if record else ""
    return f"{outcome}\n\n{table}" if outcome else table


def _outcome(record: ArtifactRecord) -> str:
    scores = {k: v for k, v in sorted(record.metrics.items()) if k.startswith(("score/", "task/"))}
    shown = {name: record.metrics[name] for name in _HEADLINES if name in record.metrics}
    shown |= dict(list(scores.items())[:_MOST_SCORES])
    if not shown:
        return ""
    return table_of_markdown(
        ["outcome", ""], [[markdown_text(name), f"{value:.4g}"] for name, value in shown.items()]
    )


def run_note(of: str, scores: Scores, links: Mapping[str, str], best: Sequence[Best] = ()) -> str:
    """The highest score of each domain, as the report has it, on the first line: MLflow shows no
    more of an experiment's text at first. Then every score, and pages. `of` says in markdown which
    run it is, where the page does not; scores of lm-eval's tasks have no `best`, as less may be
    better."""
    domains = domains_of(scores)
    models = {found.domain: found.model for found in best}
    rows = [
        [markdown_text(model), *(_cell(row, d, models.get(d) == model) for d in domains)]
        for model, row in scores.items()
    ]
    pages = " · ".join(markdown_link(name, page) for name, page in links.items())
    said = "; ".join(found.said for found in best)
    first = f"Highest scores: {said}" if best else "Scores" if scores else "No scores yet"
    header = ["mean outcome", *map(markdown_text, domains)]
    parts = [markdown_text(first) + (f" (run {of})" if of else "")]
    parts += [table_of_markdown(header, rows)] if rows else []
    return "\n\n".join(part for part in (*parts, pages) if part)


def _cell(row: Mapping[str, float], domain: str, is_best: bool) -> str:
    if domain not in row:
        return ""
    return f"**{row[domain]:.3f}**" if is_best else f"{row[domain]:.3f}"


def datasets_of(planned: PlannedStage) -> Iterator[Dataset]:
    """Problems that a stage draws itself; what it trains on of other stages it reports."""
    spec = planned.spec
    for domain in spec.sampled_domains:
        for split, count in spec.drawn.items():
            rows = spec.most_problems if split == "rl" and spec.most_problems else count
            source = {
                "curriculum": domain.curriculum.model_dump(mode="json"),
                "split": split,
                "seed": spec.seed,
                "start": getattr(spec, "start", 0),
            }
            yield Dataset(
                name=f"{domain.name} problems, {split}",
                source=json.dumps(source, sort_keys=True),
                rows=rows,
                context="evaluation" if split == "heldout" else "training",
            )
