"""What an evaluation's cells come to: the tables of `scores.json`. A model that an earlier
evaluation sampled the same way is not sampled again, whatever it is called and whatever it is
compared with.

What an evaluation says of a model depends on that model, on the settings and on the code, not on
the other models: their problems and seeds are the same. So each model's results are kept under the
digest that an evaluation of this model alone would have; where problems are rows, with what
decided which of them fit (`tasks.sampling.Fit`). Results with failed rollouts are not kept:
what failed may work the next time.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from engines.rollout.metrics import NOTHINK
from engines.rollout.records.gallery import relabelled
from tasks.evaluate.cells import CellResult, renamed
from tasks.evaluate.score_statistics import (
    Lines,
    Scaling,
    ScalingPoint,
    by_samples,
    by_turns,
    interval,
    mean,
    powers_of_two,
)
from tasks.evaluate.spec import EvaluateSpec
from tasks.served.served_roles import is_role
from tasks.stage import StageContext

if TYPE_CHECKING:
    from tasks.sampling import Fit

ANY = "model"
"""what a model is called in an evaluation of it alone"""


def scores_of(results: Sequence[CellResult]) -> dict[str, Any]:
    """The content of `scores.json`: tables by model and domain, and every cell in full.

    `scores` at temperature 1, `greedy`, `best_of` (by k) and 95% `intervals` of each of them;
    `scaling` with samples and with turns; `sampled`: by further setting, its own such tables.
    """
    tables = _tables([r for r in results if r.kind == "score"])
    greedy = {(r.model, r.domain): r for r in results if r.kind == "greedy" and r.has_verdict}
    means = {key: r.problem_means for key, r in greedy.items()}
    intervals = tables.pop("intervals")
    settings = settings_of(results)
    sampled = {name: _tables([r for r in results if r.kind == name]) for name in settings}
    return {
        "scores": tables.pop("scores"),
        "greedy": _table({key: r.score for key, r in greedy.items()}),
        **tables,
        "intervals": {"scores": intervals["scores"], "greedy": _intervals(means)} | intervals,
        "scaling": scaling_of(results).model_dump(),
        **({"sampled": sampled} if sampled else {}),
        "cells": [asdict(r) for r in results],
    }


def settings_of(results: Sequence[CellResult]) -> list[str]:
    """Names of the ways to sample beside temperature 1 and greedy."""
    return list(dict.fromkeys(r.kind for r in results if r.kind not in ("score", "greedy")))


def _tables(sampled: Sequence[CellResult]) -> dict[str, Any]:
    """Make the tables of results that were sampled alike."""
    judged = {(r.model, r.domain): r for r in sampled if r.has_verdict}
    best = {
        str(k): {(r.model, r.domain): r.best_of(k) for r in sampled if r.most_samples >= k}
        for k in powers_of_two(max((r.most_samples for r in sampled), default=0))
    }
    return {
        "scores": _table({key: r.score for key, r in judged.items()}),
        "no_verdict": _table(
            {(r.model, r.domain): r.failure for r in sampled if not r.has_verdict}
        ),
        "stderr": _table({key: r.stderr for key, r in judged.items()}),
        "best_of": {k: _means(cells) for k, cells in best.items()},
        "intervals": {"scores": _intervals({key: r.problem_means for key, r in judged.items()})}
        | {f"best_of_{k}": _intervals(cells) for k, cells in best.items()},
    }


def scaling_of(results: Sequence[CellResult], kind: str = "score") -> Scaling:
    """Return the scaling of the cells that were sampled so; `score` is at temperature 1."""
    sampled = [r for r in results if r.kind == kind]
    samples = {(r.model, r.domain): by_samples(r.outcomes) for r in sampled}
    turns = {(r.model, r.domain): by_turns(r.outcomes, r.turns, r.most_turns) for r in sampled}
    return Scaling(samples=_lines(samples), turns=_lines(turns))


def scaling_metrics(results: Sequence[CellResult]) -> dict[int, dict[str, float]]:
    """Return the metrics by budget; those of a further setting begin with its name."""
    found = scaling_of(results).metrics()
    for name in settings_of(results):
        for budget, scores in scaling_of(results, name).metrics().items():
            at = found.setdefault(budget, {})
            at |= {f"{name}/{metric}": score for metric, score in scores.items()}
    return dict(sorted(found.items()))


def _lines(curves: Mapping[tuple[str, str], list[ScalingPoint]]) -> Lines:
    return _table({key: points for key, points in curves.items() if points})


def _means(cells: Mapping[tuple[str, str], Sequence[float]]) -> dict[str, dict[str, Any]]:
    return _table({key: mean(values) for key, values in cells.items()})


def _intervals(cells: Mapping[tuple[str, str], Sequence[float]]) -> dict[str, dict[str, Any]]:
    return _table({key: interval(values) for key, values in cells.items()})


def _table(cells: Mapping[tuple[str, str], Any]) -> dict[str, dict[str, Any]]:
    """model -> domain -> value"""
    table: dict[str, dict[str, Any]] = {}
    for (model, domain), value in cells.items():
        table.setdefault(model, {})[domain] = value
    return table


@dataclass(frozen=True, slots=True)
class ModelResults:
    """The results of one model, under the name that it has here."""

    cells: Sequence[CellResult]
    rows: bytes
    """of rollouts to browse, as a gallery encodes them"""

    def encoded(self, name: str) -> dict[str, Any]:
        cells = [asdict(cell) for cell in self.cells]
        rows = base64.b64encode(self.rows).decode()
        return {"name": name, "cells": cells, "rows": rows}

    @classmethod
    def decoded(cls, kept: Mapping[str, Any], name: str) -> ModelResults:
        """Return what was kept, perhaps under another name."""
        cells = [CellResult(**cell) for cell in kept["cells"]]
        kinds = {cell.kind for cell in cells}
        names = {kept["name"]: name, kept["name"] + NOTHINK: name + NOTHINK}
        labels = {f"{old} {kind}": f"{new} {kind}" for old, new in names.items() for kind in kinds}
        rows = relabelled(base64.b64decode(kept["rows"]), labels)
        return cls(renamed(cells, kept["name"], name), rows)


async def earlier_results(
    spec: EvaluateSpec, context: StageContext, names: Sequence[str], fit: Fit | None
) -> dict[str, ModelResults]:
    """Return the results of those models that were evaluated before, by name; on rows of the same
    `fit`, as scores are compared problem by problem."""
    results = context.results
    if results is None:
        return {}
    found: dict[str, ModelResults] = {}
    for name in names:
        inputs = _inputs(context, name, fit)
        data = await asyncio.to_thread(results.read, alone(spec, name), inputs, inputs[ANY])
        if data is not None:
            found[name] = ModelResults.decoded(data, name)
    return found


async def keep_results(
    spec: EvaluateSpec,
    context: StageContext,
    made: Mapping[str, ModelResults],
    fit: Fit | None,
) -> None:
    """Keep results for later evaluations; none of a model with failed rollouts."""
    for name, of_model in made.items():
        if context.results is None or any(cell.failed_share for cell in of_model.cells):
            continue
        inputs, data = _inputs(context, name, fit), of_model.encoded(name)
        await asyncio.to_thread(context.results.keep, alone(spec, name), inputs, inputs[ANY], data)


def alone(spec: EvaluateSpec, name: str) -> EvaluateSpec:
    """The evaluation of this model alone, which is called `ANY` there."""
    nothink = [ANY] if name in spec.nothink else []
    home = {ANY: list(spec.home.get(name, []))}
    return spec.model_copy(update={"home": home, "nothink": nothink})


def _inputs(context: StageContext, name: str, fit: Fit | None) -> dict[str, str]:
    """Digests of the model, of those that rewards ask, and of what decides which rows fit."""
    records = context.input_records
    asked = {role: str(record["digest"]) for role, record in records.items() if is_role(role)}
    fitted = {} if fit is None else {"fit": fit.digest}
    return {ANY: str(records[name]["digest"]), **asked, **fitted}
