"""`evaluate`: outcome of models on fixed held-out problems, sampled and greedy."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

from engines.chat import Chat
from engines.rollout.records.gallery import Gallery
from engines.rollout.sample_only import KeptRollouts
from tasks.evaluate.cells import (
    CellResult,
    cells_of,
    mirrored,
    renamed,
    roll_cells,
    scaling_of,
    scores_of,
)
from tasks.evaluate.failed import warnings_of
from tasks.evaluate.spec import SCORES_FILE, EvaluateSpec
from tasks.resources import unless_stopped
from tasks.sampling import open_sampling
from tasks.served.roles import is_role
from tasks.stage import StageContext, require_inputs


async def run(spec: EvaluateSpec, context: StageContext) -> dict[str, float]:
    """Score every input model on every domain. Raises EngineError, InputError, Stopped."""
    require_inputs(context, sorted({*spec.home, *spec.nothink}))
    models = [(name, path) for name, path in context.inputs.items() if not is_role(name)]
    first = models[0][1]
    twins = twins_of(spec, context.input_records)
    results: list[CellResult] = []
    recovered = 0
    async with AsyncExitStack() as stack:
        parts = await open_sampling(
            stack, context, spec.settings.fleet, spec.domains, first, spec.seed
        )
        gallery = Gallery(parts.chat)
        began = time.monotonic()
        for version, (name, folder) in enumerate(models):
            if name in twins:
                results += renamed(results, twins[name], name)
                continue
            if version > 0:
                await parts.fleet.load(folder, version)
            roller = await parts.rollers.of(folder, Chat.load(folder))
            kept = await KeptRollouts.open(parts.journal, version)
            recovered += len(kept.known)
            cells = cells_of(spec, name, parts.domains)
            results += await unless_stopped(context, roll_cells(roller, cells, kept, gallery))
            context.reporter.progress(version + 1, len(models), f"evaluated {name}")
        worked = time.monotonic() - began
    results = mirrored(results, spec.nothink)
    for warning in warnings_of(results):
        context.reporter.keep_warning(warning)
    for budget, scores in scaling_of(results).metrics().items():
        context.reporter.metrics(budget, scores)
    (context.out / SCORES_FILE).write_text(json.dumps(scores_of(results), indent=1))
    gallery.write(context.out)
    return {
        **{f"{r.kind}/{r.model}/{r.domain}": r.score for r in results if r.score is not None},
        "generated_tokens": float(sum(r.tokens for r in results)),
        "generate_tokens_per_s": sum(r.tokens for r in results) / max(worked, 1e-9),
        "rollouts_recovered": float(recovered),
        "work_seconds": worked,
    }


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
