"""Settings and spec of `lm_eval`: tasks of EleutherAI's lm-evaluation-harness."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

from pydantic import Field, NonNegativeInt, PositiveInt

from engines.sglang.spec import FleetSpec
from infra.config import Config
from tasks.stage import StageSpec

PACKAGE = "lm-eval"
TASK_SCORES_FILE, ANSWERS_FILE = "task_scores.json", "answers.jsonl"


class LmEvalSettings(Config):
    """Each model of the run answers every task; a score is the mean over a task's documents."""

    tasks: list[str] = Field(default_factory=list)
    """names of tasks or groups, e.g. `arc_easy`, `mmlu`; none: the stage is left out"""
    folder: str = ""
    """folder of your own tasks: YAML files as lm-eval has them, with their data beside them.
    Relative to the recipe's file. The flow and the stage must both reach it"""
    num_fewshot: NonNegativeInt | None = None
    """solved examples before each question; None: what each task says"""
    limit: PositiveInt | None = None
    """the first documents of each task only, to try it out; None: all"""
    chat: bool = False
    """whether prompts are written with the model's chat template, thinking off where the template
    can turn it off; base models have none that they know"""
    fleet: FleetSpec = FleetSpec()


class LmEvalSpec(StageSpec):
    """Inputs: models by name. Artifact: `task_scores.json` and `answers.jsonl`."""

    kind: ClassVar[str] = "lm_eval"
    settings: LmEvalSettings
    version: str
    """of the package, which says what a task is; empty where it is not installed"""

    @property
    def fleet(self) -> FleetSpec:
        return self.settings.fleet

    def problems(self) -> Iterator[str]:
        if not self.version:
            yield (
                f"tasks: the package {PACKAGE} is not installed; install it where the flow and the"
                " stages run, with pip install 'tributary[lm-eval]', or remove `lm_eval`"
            )
        if len(set(self.settings.tasks)) < len(self.settings.tasks):
            yield "tasks: names a task twice; write each once"
        for task in _named_nowhere(frozenset(self.settings.tasks), self.settings.folder):
            yield (
                f"tasks: no file of {PACKAGE}'s or of `folder` names {task!r}; correct it"
                " (`lm-eval ls tasks` lists what there is)"
            )


@cache
def _named_nowhere(tasks: Collection[str], folder: str) -> list[str]:
    """By their text: to have lm-eval read its 14,000 files takes minutes."""
    found = find_spec("lm_eval")
    if found is None or "://" in folder:
        return []
    folders = [Path(each) / "tasks" for each in found.submodule_search_locations or ()]
    if folder:
        folders.insert(0, Path(folder))
    left = {task: re.compile(rf"(?<![\w-]){re.escape(task)}(?![\w-])".encode()) for task in tasks}
    for file in (file for each in folders for file in each.rglob("*.y*ml") if file.is_file()):
        if not left:
            break
        text = file.read_bytes()
        left = {task: named for task, named in left.items() if not named.search(text)}
    return sorted(left)


def installed_version() -> str:
    """Return the version; empty where the package is not installed."""
    try:
        return version(PACKAGE)
    except PackageNotFoundError:
        return ""
