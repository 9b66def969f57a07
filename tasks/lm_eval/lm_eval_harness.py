"""The process that runs lm-eval: `python -P -m tasks.lm_eval.lm_eval_harness PARENT ORDER`.

Its standard output has a line of JSON for every half second of progress; everything else goes to
the log that is its standard error.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.errors import BAD_INPUT, InputError, TributaryError
from infra.hooks import did_you_mean
from infra.sandbox.confine import libc

_RESAMPLES = 1000
"""of lm-eval's own bootstrap, for metrics that are no mean over documents"""


@dataclass(frozen=True, slots=True)
class Order:
    """What to run."""

    url: str
    """router of the servers that hold the model"""
    model: str
    """its folder"""
    context: int
    """longest sequence, in tokens"""
    seed: int
    tasks: Sequence[str]
    folder: str
    num_fewshot: int | None
    limit: int | None
    chat: bool
    results: str
    """file to write"""


def main() -> int:
    """-> exit code; what a person can repair is 2, with the reason as the last line of the log."""
    libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(sys.argv[1]):  # it died before the line above
        return 1
    order = Order(**json.loads(sys.argv[2]))
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # tasks and libraries print what they like
    if order.folder:
        os.chdir(order.folder)  # tasks name their data relative to it

    def say(done: int, total: int) -> None:
        print(json.dumps({"done": done, "total": total}), file=channel)

    try:
        results = evaluated(order, say)
    except TributaryError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except (KeyError, ValueError, TypeError, FileNotFoundError) as error:
        # How lm-eval and its tasks say that a task is written wrong, or that its data is missing.
        traceback.print_exc()
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return BAD_INPUT
    Path(order.results).write_text(json.dumps(results))
    return 0


def evaluated(order: Order, say: Callable[[int, int], None]) -> dict[str, Any]:
    """What `tasks.lm_eval.scores` reads. Raises InputError for unknown tasks, EngineError."""
    from lm_eval.evaluator import evaluate

    from tasks.lm_eval.asked_model import ServedModel

    loaded = _loaded(order)
    for task in loaded["tasks"].values():
        own = task.get_config("num_fewshot")
        if order.num_fewshot is not None and own != 0:  # 0 is a task that works only without
            task.set_config(key="num_fewshot", value=order.num_fewshot)
        elif own is None:
            task.set_config(key="num_fewshot", value=0)
        task.set_fewshot_seed(seed=order.seed)
    model = ServedModel(order.url, Path(order.model), order.context, order.seed, say)
    found: Any = evaluate(
        model,
        loaded,
        limit=order.limit,
        bootstrap_iters=_RESAMPLES,
        apply_chat_template=order.chat,
        fewshot_as_multiturn=order.chat,
    )
    return {
        "results": {task: _numbers(row) for task, row in found["results"].items()},
        "samples": {
            task: [_sample(each) for each in rows] for task, rows in found["samples"].items()
        },
        "higher_is_better": found["higher_is_better"],
    }


def _loaded(order: Order) -> Any:
    """The tasks, of the person's own folder if it has all of them: lm-eval has 14,000 to look at.

    Raises InputError.
    """
    from lm_eval.tasks import TaskManager

    if order.folder:
        own = TaskManager(include_path=order.folder, include_defaults=False)
        if set(order.tasks) <= set(own.all_tasks):
            return own.load(list(order.tasks))
    manager = TaskManager(include_path=order.folder or None)
    for task in order.tasks:
        if task not in manager.all_tasks:
            raise InputError(
                f"lm_eval.tasks: lm-eval has no task {task!r}."
                f"{did_you_mean(task, manager.all_tasks)} `lm-eval ls tasks` lists them; your own"
                " come from `lm_eval.folder`"
            )
    return manager.load(list(order.tasks))


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in row.items()
        if "," in name and isinstance(value, int | float)
    }


def _sample(sample: Mapping[str, Any]) -> dict[str, Any]:
    """One document's answer to one filter."""
    asked = sample["arguments"]
    return {
        "document": sample["doc_id"],
        "filter": sample["filter"],
        "prompt": str(asked[0][0]) if asked else "",
        "target": str(sample["target"]),
        "answer": json.loads(json.dumps(sample["filtered_resps"], default=str)),
        "metrics": {
            name: float(sample[name])
            for name in sample["metrics"]
            if isinstance(sample[name], bool | int | float)
        },
    }


if __name__ == "__main__":
    sys.exit(main())
