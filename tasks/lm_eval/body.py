"""`lm_eval`: models on tasks of lm-evaluation-harness, run by it in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from infra.errors import BAD_INPUT, EngineError, InputError
from infra.processes.children import log_tail
from tasks.lm_eval.lm_eval_harness import Order
from tasks.lm_eval.scores import TaskScore, scores_file, scores_of
from tasks.lm_eval.spec import ANSWERS_FILE, TASK_SCORES_FILE, LmEvalSpec, installed_version
from tasks.resources import context_length, lease_fleet, unless_stopped
from tasks.stage import StageContext

_END_S = 10.0
_ANY = "model"
"""what a model is called in an evaluation of it alone"""


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
    """What stages of the same settings and code found earlier, by model: it depends on that model
    alone, so a further round asks its own model only."""
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
    """What the harness finds; its process ends before this returns or raises."""
    log = context.scratch / f"lm-eval-{name}.log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "tasks.lm_eval.lm_eval_harness"),
            *(str(os.getpid()), json.dumps(asdict(order))),
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=output,
            start_new_session=True,
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
    """What earlier attempts found, by model."""
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
