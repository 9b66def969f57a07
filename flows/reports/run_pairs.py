"""Two runs that scored the same held-out problems, or documents of lm-eval's tasks, compared one by
one. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import Field

from flows.reports.paired_tests import holm, paired
from infra.config import Config
from tasks.evaluate.spec import NOTHINK
from tasks.evaluate.statistics import judged_in_both, mean, problem_means

_DECIDES = ("curriculum", "outcome", "driver", "max_new_tokens", "max_turns")
"""what makes a domain's problems, and how an answer to them is judged"""


class PairedScore(Config):
    """A model on a domain in the second run against the first one."""

    model: str
    domain: str
    """or a task of lm-eval with its metric"""
    kind: Literal["score", "greedy", "task"]
    first: float
    second: float
    difference: float
    low: float
    high: float
    """95% interval of the difference"""
    better: int
    worse: int
    """of `problems`, those on which the second run is"""
    problems: int
    p: float
    """two-sided"""
    p_adjusted: float
    """for all tests of the two runs (Holm); models that are the same in both are not tested"""
    test: str


class PairOfRuns(Config):
    first: str
    second: str
    scores: list[PairedScore]
    """empty: the two have no problem in common, or only models that are the same"""
    same: list[str] = Field(default_factory=list[str])
    """models that are one artifact in both runs, so that nothing is compared"""
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class ScoredRun:
    """A run as its evaluation's artifact has it."""

    run: str
    digest: str
    identity: Mapping[str, Any]
    """settings of the evaluation"""
    scores: Mapping[str, Any]
    """content of `scores.json`"""
    task_identity: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """settings of lm-eval's stage"""
    task_scores: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """content of `task_scores.json`"""
    models: Mapping[str, str] = field(default_factory=dict[str, str])
    """digests of the artifacts that were scored, by model"""


def pair_of(first: ScoredRun, second: ScoredRun) -> PairOfRuns:
    """Of every model and domain that both scored on the same problems, sampled alike."""
    if first.digest == second.digest:
        why = "both have one and the same evaluation"
        return PairOfRuns(first=first.run, second=second.run, scores=[], why_not=why)
    cells = [*_cells(first, second), *_task_cells(first, second)]
    same = [name for name in first.models if first.models[name] == second.models.get(name)]
    cells = [(ours, theirs) for ours, theirs in cells if _artifact(theirs["model"]) not in same]
    made = [_score(ours, theirs) for ours, theirs in cells]
    adjusted = holm([score.p for score in made])
    scores = [
        score.model_copy(update={"p_adjusted": p}) for score, p in zip(made, adjusted, strict=True)
    ]
    why = "" if scores else _why_not(first, second, same)
    return PairOfRuns(first=first.run, second=second.run, scores=scores, same=same, why_not=why)


def _artifact(model: str) -> str:
    """What the evaluation's input is called: a model is scored with and without thinking."""
    return model.removesuffix(NOTHINK)


def _cells(
    first: ScoredRun, second: ScoredRun
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    ours = {(c["model"], c["domain"], c["kind"]): c for c in first.scores.get("cells", [])}
    for cell in second.scores.get("cells", []):
        other = ours.get((cell["model"], cell["domain"], cell["kind"]))
        asked = _problems(first, cell["domain"])
        if (
            other is not None
            and asked is not None
            and asked == _problems(second, cell["domain"])
            and len(other["outcomes"]) == len(cell["outcomes"])
            and _of_both(other, cell)[0]
        ):
            yield other, cell


def _of_both(
    first: Mapping[str, Any], second: Mapping[str, Any]
) -> tuple[list[float], list[float]]:
    """The problems' means, of those on which both have a verdict."""
    return judged_in_both(problem_means(first["outcomes"]), problem_means(second["outcomes"]))


def _task_cells(
    first: ScoredRun, second: ScoredRun
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Metrics that are means over the same documents, asked in the same way."""
    if _asked(first) != _asked(second):
        return
    ours = {(c["model"], c["task"], c["metric"]): c for c in first.task_scores.get("cells", [])}
    for cell in second.task_scores.get("cells", []):
        other = ours.get((cell["model"], cell["task"], cell["metric"]))
        if other is not None and len(other["outcomes"]) == len(cell["outcomes"]) > 0:
            yield _as_cell(other), _as_cell(cell)


def _asked(run: ScoredRun) -> Any:
    """What decides which documents a task has and how they are asked."""
    settings = run.task_identity.get("settings", {})
    asked = {name: value for name, value in settings.items() if name not in ("tasks", "fleet")}
    return run.task_identity.get("version"), asked


def _as_cell(cell: Mapping[str, Any]) -> Mapping[str, Any]:
    """In the form of `scores.json`: one value a problem."""
    outcomes = [[value] for value in cell["outcomes"]]
    name = f"{cell['task']} {cell['metric']}"
    return {"model": cell["model"], "domain": name, "kind": "task", "outcomes": outcomes}


def _score(first: Mapping[str, Any], second: Mapping[str, Any]) -> PairedScore:
    ours, theirs = _of_both(first, second)
    found = paired(ours, theirs)
    return PairedScore(
        model=second["model"], domain=second["domain"], kind=second["kind"],
        first=mean(ours), second=mean(theirs), difference=found.difference,
        low=found.low, high=found.high, better=found.better, worse=found.worse,
        problems=found.problems, p=found.p, p_adjusted=found.p, test=found.test,
    )  # fmt: skip


def _problems(run: ScoredRun, domain: str) -> Any:
    """What decides which problems a domain's are; None where it is not known."""
    domains = {d["name"]: d for d in run.identity.get("domains", [])}
    if domain not in domains:
        return None
    parts = {name: domains[domain].get(name) for name in _DECIDES}
    return run.identity.get("seed"), run.identity["settings"]["problems"], parts


def _why_not(first: ScoredRun, second: ScoredRun, same: Sequence[str]) -> str:
    seeds = first.identity.get("seed"), second.identity.get("seed")
    if seeds[0] != seeds[1]:
        return f"their held-out problems are of different seeds, {seeds[0]} and {seeds[1]}"
    if not first.scores or not second.scores:
        return "no model was scored in both on the same documents of a task"
    counts = [run.identity.get("settings", {}).get("problems") for run in (first, second)]
    if counts[0] != counts[1]:
        return f"they scored {counts[0]} and {counts[1]} problems of each domain"
    if same:
        return f"what both scored on the same problems is the same: {', '.join(same)}"
    return "no model was scored in both on the same problems of a domain"
