"""Settings and spec of `lm_eval`: tasks of EleutherAI's lm-evaluation-harness."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
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


def installed_version() -> str:
    """Empty where the package is not installed."""
    try:
        return version(PACKAGE)
    except PackageNotFoundError:
        return ""
