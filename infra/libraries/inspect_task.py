"""A task of the library Inspect (`inspect-ai`): its solver asks the policy, and its scorers score.

Inspect runs one evaluation at a time in a process. So rollouts that are asked for meanwhile wait,
and are then run together as the samples of the next evaluation.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import importlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infra.errors import InputError
from infra.libraries.library import Outcome, Row, cause_of, imported, outcome_of

_GATHER_S = 0.05
"""in which rollouts that start together arrive"""


@dataclass(slots=True)
class _Asked:
    """A rollout that is to be run."""

    content: dict[str, Any]
    url: str
    key: str
    seconds: float
    outcome: asyncio.Future[Outcome]


class InspectTask:
    """What a function decorated with `@task` gives: `module:function`."""

    def __init__(self, name: str, arguments: Mapping[str, Any]) -> None:
        os.environ["INSPECT_DISPLAY"] = "none"  # its output belongs to nobody here
        self._inspect: Any = imported("inspect-ai", "inspect_ai")
        self._task: Any = _made(name, arguments, self._inspect.Task)
        if not self._task.scorer:
            raise InputError(f"task {name} has no scorer; nothing would score its answers")
        if self._task.sandbox is not None or any(s.sandbox for s in self._task.dataset):
            raise InputError(
                f"task {name} asks for a sandbox of Inspect, which is not started here; only tasks"
                " whose tools run in the solver's own process do"
            )
        self._waiting: list[_Asked] = []
        self._running: asyncio.Task[None] | None = None

    def rows(self) -> Sequence[Row]:
        """Return the task's samples, all held out: what a task evaluates is not trained on."""
        return [
            Row(_messages(sample.input), True, sample.model_dump(mode="json", exclude_none=True))
            for sample in self._task.dataset
        ]

    async def rollout(self, content: dict[str, Any], url: str, key: str, seconds: float) -> Outcome:
        """The sample's score, once its evaluation is over."""
        outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Asked(content, url, key, seconds, outcome))
        if self._running is None:
            self._running = asyncio.create_task(self._run_waiting())
        return await outcome

    async def _run_waiting(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(_GATHER_S)
                batch, self._waiting = self._waiting, []
                try:
                    await self._run(batch)
                except Exception as error:  # of the task's code: its rollouts fail
                    _settle(batch, {}, f"{type(error).__name__}: {error}")
        finally:
            self._running = None

    async def _run(self, batch: Sequence[_Asked]) -> None:
        """One evaluation, whose samples are these rollouts."""
        from infra.libraries.inspect_model import policy_model, reached

        by_id = {f"rollout-{number}": asked for number, asked in enumerate(batch)}
        self._inspect.util.display_type()
        dataset = self._inspect.dataset
        samples = [
            dataset.Sample.model_validate(asked.content | {"id": name})
            for name, asked in by_id.items()
        ]
        setup = reached({name: (asked.url, asked.key) for name, asked in by_id.items()})
        own: Any = self._task.setup
        before = [] if own is None else list(own) if isinstance(own, Sequence) else [own]
        task = self._inspect.task_with(
            copy.copy(self._task),
            dataset=dataset.MemoryDataset(samples), setup=[setup, *before], epochs=1,
        )  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            (log,) = await self._inspect.eval_async(
                task, model=policy_model(), log_dir=folder, log_level="error", log_format="json",
                log_realtime=False, ctl_server=False, fail_on_error=False, max_samples=len(batch),
                time_limit=max(1, round(max(asked.seconds for asked in batch))),
            )  # fmt: skip
        found = {sample.id: self._outcome(sample) for sample in log.samples or ()}
        why = log.error.message if log.error is not None else "Inspect did not run this sample"
        _settle(batch, {id(by_id[name]): outcome for name, outcome in found.items()}, why)

    def _outcome(self, sample: Any) -> Outcome:
        if sample.error is not None:
            return Outcome(error=sample.error.message)
        number: Any = self._inspect.scorer.value_to_float()
        parts: dict[str, float] = {}
        for scorer, score in (sample.scores or {}).items():
            if isinstance(score.value, Mapping):
                parts |= {f"{scorer}/{key}": number(each) for key, each in score.value.items()}
            elif not isinstance(score.value, Sequence) or isinstance(score.value, str):
                parts[scorer] = number(score.value)
        limit = getattr(sample.limit, "type", "")
        return outcome_of(next(iter(parts.values()), None), parts, is_late=limit == "time")


def _settle(batch: Sequence[_Asked], found: Mapping[int, Outcome], why: str) -> None:
    """`found` by identity; those that are not in it ended for the reason."""
    for asked in batch:
        if not asked.outcome.done():
            asked.outcome.set_result(found.get(id(asked), Outcome(error=why)))


def _made(name: str, arguments: Mapping[str, Any], kind: type) -> Any:
    """Raises InputError where the name leads to no task."""
    module, colon, attribute = name.partition(":")
    if not colon:
        raise InputError(f"task {name}: write `module:function`, e.g. my_tasks:arithmetic")
    try:
        function = getattr(importlib.import_module(module), attribute)
        made = function(**arguments)
    except Exception as error:  # whatever a task's own code raises
        raise InputError(f"task {name}: {cause_of(error)}") from error
    if not isinstance(made, kind):
        raise InputError(f"task {name}: gave {type(made).__name__}, not a Task of inspect_ai")
    return made


def _messages(asked: Any) -> list[tuple[str, str]]:
    """Raises InputError for what is no text."""
    if isinstance(asked, str):
        return [("user", asked)]
    found: list[tuple[str, str]] = []
    for message in asked:
        parts: Any = [] if isinstance(message.content, str) else message.content
        with contextlib.suppress(StopIteration):
            other = next(part.type for part in parts if part.type != "text")
            raise InputError(f"a sample has a part of type {other!r}: the policy reads text only")
        found.append((message.role, message.text))
    return found
