"""`evaluate`: outcome of models on fixed held-out problems, sampled and greedy."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from engines.chat import Chat
from engines.rollout.records.gallery import Gallery
from engines.rollout.sample_only import KeptRollouts
from tasks.evaluate.cells import (
    CellResult,
    cells_of,
    mirrored,
    pathology_rates,
    renamed,
    roll_cells,
    that_think,
    warnings_of,
)
from tasks.evaluate.score_tables import (
    ModelResults,
    earlier_results,
    keep_results,
    scaling_metrics,
    scores_of,
)
from tasks.evaluate.spec import SCORES_FILE, EvaluateSpec
from tasks.resources import unless_stopped
from tasks.sampling import Fit, open_sampling
from tasks.served.served_roles import is_role
from tasks.stage import StageContext, require_inputs


async def run(spec: EvaluateSpec, context: StageContext) -> dict[str, float]:
    """Score every input model on every domain. Raises EngineError, InputError, Stopped."""
    require_inputs(context, sorted({*spec.home, *spec.nothink}))
    models = {name: path for name, path in context.inputs.items() if not is_role(name)}
    twins = twins_of(spec, context.input_records)
    fit = await Fit.of(spec.settings.fleet, spec.domains, list(models.values()))
    own = [name for name in models if name not in twins]
    known = await earlier_results(spec, context, own, fit)
    new = [name for name in own if name not in known]
    if known:
        print(f"{len(known)} models were evaluated before: {', '.join(known)}", flush=True)
    sampled = await _sampled(spec, context, models, new, fit) if new else Sampled()
    of_models = {**known, **sampled.results}
    results: list[CellResult] = []
    gallery = Gallery(Chat.load(next(iter(models.values()))))
    for name in models:
        if name in twins:
            same = renamed(results, twins[name], name)
            results += [replace(result, tokens=0) for result in same]  # they are counted once
            continue
        results += of_models[name].cells
        gallery.take_in(of_models[name].rows)
    new_tokens = sum(cell.tokens for made in sampled.results.values() for cell in made.cells)
    results = mirrored(results, spec.nothink)
    for warning in warnings_of(results):
        context.reporter.keep_warning(warning)
    for budget, scores in scaling_metrics(results).items():
        context.reporter.metrics(budget, scores)
    (context.out / SCORES_FILE).write_text(json.dumps(scores_of(results), indent=1))
    gallery.write(context.out)
    await keep_results(spec, context, sampled.results, fit)
    return {
        **{f"{r.kind}/{r.model}/{r.domain}": r.score for r in results if r.score is not None},
        **pathology_rates(results),
        "generated_tokens": float(sum(r.tokens for r in results)),
        "generate_tokens_per_s": new_tokens / max(sampled.seconds, 1e-9),
        "rollouts_recovered": float(sampled.recovered),
        "work_seconds": sampled.seconds,
    }


@dataclass(slots=True)
class Sampled:
    """What the models that are new came to."""

    results: dict[str, ModelResults] = field(default_factory=dict[str, ModelResults])
    recovered: int = 0
    """rollouts that an earlier attempt had finished"""
    seconds: float = 0.0


async def _sampled(
    spec: EvaluateSpec,
    context: StageContext,
    models: Mapping[str, Path],
    new: Sequence[str],
    fit: Fit | None,
) -> Sampled:
    """The version of a model's weights is its place among all, so that each attempt finds its
    rollouts again. Raises EngineError, InputError, Stopped."""
    made = Sampled()
    async with AsyncExitStack() as stack:
        fleet, first = spec.settings.fleet, models[new[0]]
        parts = await open_sampling(stack, context, fleet, spec.domains, first, spec.seed, fit)
        began = time.monotonic()
        for version, (name, folder) in enumerate(models.items()):
            if name not in new:
                continue
            if version > 0:
                await parts.fleet.load(folder, version)
            chat = Chat.load(folder)
            cells, left_out = that_think(cells_of(spec, name, parts.domains), chat)
            for line in left_out:
                context.reporter.warn(line)
            roller = await parts.rollers.of(folder, chat)
            kept = await KeptRollouts.open(parts.journal, version)
            made.recovered += len(kept.known)
            gallery = Gallery(parts.chat)
            rolled = await unless_stopped(context, roll_cells(roller, cells, kept, gallery))
            made.results[name] = ModelResults(rolled, gallery.encoded())
            context.reporter.progress(version + 1, len(models), f"evaluated {name}")
        made.seconds = time.monotonic() - began
    return made


def twins_of(spec: EvaluateSpec, records: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Models that are another, by that one's name: the same artifact, to be sampled the same way.

    Variants of one expert share their cold start. Example: {"dapo-sft": "grpo-sft"}
    """
    first: dict[tuple[object, ...], str] = {}
    twins: dict[str, str] = {}
    for name, record in records.items():
        if is_role(name):
            continue
        identity = (record["digest"], tuple(spec.home.get(name, ())), name in spec.nothink)
        original = first.setdefault(identity, name)
        if original != name:
            twins[name] = original
    return twins
