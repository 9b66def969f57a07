"""`lm_eval`: models on tasks of lm-evaluation-harness, run by it in a process of its own; and what
it found, as scores with 95% intervals.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from infra.errors import BAD_INPUT, EngineError, InputError
from infra.processes.children import log_tail
from infra.secret_references import for_part
from tasks.evaluate.score_statistics import Z95, interval, mean
from tasks.lm_eval.lm_eval_harness import Order
from tasks.lm_eval.spec import ANSWERS_FILE, TASK_SCORES_FILE, LmEvalSpec, installed_version
from tasks.resources import context_length, lease_fleet, unless_stopped
from tasks.stage import StageContext

_ANY_FILTER = "none"
"""what lm-eval calls the answer as it is"""
_CLOSE = 1e-9
_END_S = 10.0
_ANY = "model"
"""what a model is called in an evaluation of it alone"""


@dataclass(frozen=True, slots=True)
class TaskScore:
    """One metric of one task, or of a group of tasks.

    Example: TaskScore("arc_easy", "acc", 0.71, 0.69, 0.73, 2376, [1.0, 0.0, ...])
    """

    task: str
    metric: str
    """with the filter that took the answer from the text, e.g. `exact_match strict-match`"""
    value: float
    low: float | None
    high: float | None
    """95% interval over documents; None where neither we nor lm-eval can tell"""
    documents: int
    """0: a group, of whose tasks the score is made"""
    outcomes: Sequence[float] = field(default_factory=list[float])
    """of each document, where the score is their mean"""
    less_is_better: bool = False

    @property
    def name(self) -> str:
        return f"{self.task} {self.metric}"


def scores_of(found: Mapping[str, Any]) -> list[TaskScore]:
    """Return every metric of every task of `harness.evaluated`, in its order."""
    scores: list[TaskScore] = []
    for task, row in found["results"].items():
        samples = found["samples"].get(task, [])
        of_documents = _by_metric(samples)
        documents = len({sample["document"] for sample in samples})
        directions = found.get("higher_is_better", {}).get(task, {})
        for key, value in row.items():
            metric, _, taken_by = key.partition(",")
            if metric.endswith("_stderr"):
                continue
            values = of_documents.get((metric, taken_by), [])
            is_mean = bool(values) and abs(mean(values) - value) < _CLOSE
            error = row.get(f"{metric}_stderr,{taken_by}")
            low, high = _bounds(value, values if is_mean else [], error)
            shown = metric if taken_by == _ANY_FILTER else f"{metric} {taken_by}"
            scores.append(
                TaskScore(
                    task, shown, value, low, high, documents, values if is_mean else [],
                    less_is_better=directions.get(metric) is False,
                )
            )  # fmt: skip
    return scores


def _by_metric(samples: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], list[float]]:
    """Values of the documents, in their order, by metric and filter."""
    values: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for sample in sorted(samples, key=lambda sample: sample["document"]):
        for metric, value in sample["metrics"].items():
            values[metric, sample["filter"]].append(value)
    return values


def _bounds(
    value: float, values: Sequence[float], error: float | None
) -> tuple[float | None, float | None]:
    """Return them as our own scores have them where a document's value is between 0 and 1; else of
    the standard error that lm-eval gives, which is a bootstrap's for metrics that are no mean."""
    if values and all(0 <= each <= 1 for each in values):
        low, high = interval(values)
        return min(low, value), max(high, value)  # rounding may leave 0 outside
    if error is None or error != error:
        return None, None
    return value - Z95 * error, value + Z95 * error


def scores_file(scores: Mapping[str, Sequence[TaskScore]]) -> dict[str, Any]:
    """The content of `task_scores.json`: by model, tables by task and metric, and all in full."""
    return {
        "scores": {model: {s.name: s.value for s in of} for model, of in scores.items()},
        "intervals": {
            model: {s.name: (s.low, s.high) for s in of if s.low is not None}
            for model, of in scores.items()
        },
        "cells": [{"model": model, **asdict(s)} for model, of in scores.items() for s in of],
    }


async def run(spec: LmEvalSpec, context: StageContext) -> dict[str, float]:
    """Score every input model on every task. Raises EngineError, InputError, Stopped."""
    _check_version(spec)
    noted = _noted(context)
    found = await _earlier(spec, context) | noted
    twins = _twins(context)
    new = [name for name in context.inputs if name not in found and name not in twins]
    began = time.monotonic()
    if new:
        async with AsyncExitStack() as stack:
            fleet = await lease_fleet(stack, context, spec.settings.fleet, context.inputs[new[0]])
            began = time.monotonic()
            for number, name in enumerate(new):
                folder = context.inputs[name]
                if number > 0:
                    await fleet.load(folder, number)
                order = _order(spec, context, folder, fleet.router_url)
                found[name] = await unless_stopped(context, ordered(order, name, context))
                context.checkpoints.note("rollouts", len(found), _note(name, found[name]))
                await _keep(spec, context, name, found[name])
                done = len(context.inputs) - len(new) + number + 1
                context.reporter.progress(done, len(context.inputs), f"evaluated {name}")
    worked = time.monotonic() - began
    # in the inputs' order: the artifact is the same whatever was known before
    found = {name: found[twins.get(name, name)] for name in context.inputs}
    scores = {name: scores_of(each) for name, each in found.items()}
    (context.out / TASK_SCORES_FILE).write_text(json.dumps(scores_file(scores), indent=1))
    _write_answers(context.out / ANSWERS_FILE, found)
    return _metrics(scores) | {"models_recovered": float(len(noted)), "work_seconds": worked}


async def _earlier(spec: LmEvalSpec, context: StageContext) -> dict[str, dict[str, Any]]:
    """Return what stages of the same settings and code found earlier, by model: it depends on that
    model alone, so a further round asks its own model only."""
    found: dict[str, dict[str, Any]] = {}
    for name in context.inputs:
        digest = _digest(context, name)
        if context.results is not None and digest:
            one = await asyncio.to_thread(context.results.read, spec, {_ANY: digest}, digest)
            if one is not None:
                found[name] = one
    if found:
        print(f"{len(found)} models were evaluated before: {', '.join(found)}", flush=True)
    return found


async def _keep(
    spec: LmEvalSpec, context: StageContext, name: str, found: Mapping[str, Any]
) -> None:
    """Keep what was found for later stages."""
    digest = _digest(context, name)
    if context.results is not None and digest:
        await asyncio.to_thread(context.results.keep, spec, {_ANY: digest}, digest, found)


def _check_version(spec: LmEvalSpec) -> None:
    here = installed_version()
    if here != spec.version:
        raise InputError(
            f"the flow has lm-eval {spec.version}, and the stage's machine {here}; install the same"
            " on both"
        )


def _order(spec: LmEvalSpec, context: StageContext, model: Path, url: str) -> Order:
    asked = spec.settings
    return Order(
        url=url,
        model=str(model),
        context=context_length(asked.fleet, model),
        seed=spec.seed,
        tasks=list(asked.tasks),
        folder=asked.folder,
        num_fewshot=asked.num_fewshot,
        limit=asked.limit,
        chat=asked.chat,
        results=str(context.scratch / "results.json"),
    )


async def ordered(order: Order, name: str, context: StageContext) -> dict[str, Any]:
    """Return what the harness finds; its process ends before this returns or raises."""
    log = context.scratch / f"lm-eval-{name}.log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "tasks.lm_eval.lm_eval_harness"),
            *(str(os.getpid()), json.dumps(asdict(order))),
            env=for_part(os.environ, {}), stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=output, start_new_session=True,
        )  # fmt: skip
    try:
        assert process.stdout is not None
        async for line in process.stdout:
            said = json.loads(line)
            context.pulse.beat()
            context.reporter.progress(said["done"], said["total"], f"{name}: requests")
        code = await process.wait()
    finally:
        with contextlib.suppress(ProcessLookupError):  # what it started is in its group
            os.killpg(process.pid, signal.SIGKILL)
        await asyncio.wait_for(process.wait(), _END_S)
    if code == BAD_INPUT:
        raise InputError(f"lm-eval cannot run these tasks on {name}:\n{log_tail(log)}")
    if code:
        raise EngineError(f"lm-eval ended with {code} on {name}; the end of its log:\n"
                          f"{log_tail(log)}")  # fmt: skip
    return json.loads(Path(order.results).read_text())


def _digest(context: StageContext, name: str) -> str:
    """Name the artifact of an input model; empty where it is not known."""
    return str(context.input_records.get(name, {}).get("digest", ""))


def _twins(context: StageContext) -> dict[str, str]:
    """Models that are the same artifact as one before them, which is asked in their place."""
    first: dict[str, str] = {}
    found: dict[str, str] = {}
    for name in context.inputs:
        digest = _digest(context, name)
        if digest and first.setdefault(digest, name) != name:
            found[name] = first[digest]
    return found


def _note(name: str, found: Mapping[str, Any]) -> bytes:
    return json.dumps({"name": name, "found": found}).encode()


def _noted(context: StageContext) -> dict[str, dict[str, Any]]:
    """Return what earlier attempts found, by model."""
    notes = [json.loads(note) for note in context.checkpoints.notes("rollouts", 0)]
    return {note["name"]: note["found"] for note in notes}


def _write_answers(file: Path, found: Mapping[str, Mapping[str, Any]]) -> None:
    """A line for each document, filter and model."""
    with file.open("w") as out:
        for model, of in found.items():
            for task, samples in of["samples"].items():
                for sample in samples:
                    out.write(json.dumps({"model": model, "task": task, **sample}) + "\n")


def _metrics(scores: Mapping[str, list[TaskScore]]) -> dict[str, float]:
    """`task/MODEL/TASK/METRIC`, as `evaluate` has `score/MODEL/DOMAIN`."""
    return {
        f"task/{model}/{score.task}/{score.metric.replace(' ', '/')}": score.value
        for model, of in scores.items()
        for score in of
    }
