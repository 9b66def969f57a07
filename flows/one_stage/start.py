"""`tributary sft`, `rl`, `distill`, `evaluate`: print the recipe, save it, run it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from rich.console import Console

from flows.command.run import start_flow
from flows.one_stage.build import as_yaml, recipe_data, validated
from flows.one_stage.options import OneStage
from flows.plan import SCORING
from flows.post_train import plan_post_train
from flows.recipe import Recipe
from flows.running.chosen_stages import ChosenStages
from infra.errors import InputError

FLOW = "post-train"


def start_one(
    asked: OneStage,
    prints_only: bool,
    save: str,
    evaluates: bool,
    in_process: bool,
    console: Console,
) -> int:
    """`evaluates`: whether the models are scored, too; -> exit code."""
    data = recipe_data(asked)
    recipe = validated(asked, data)
    chosen = ChosenStages() if evaluates else ChosenStages(until_stage=_last(recipe))
    text = _written(asked, data, save, chosen)
    if save:
        _save(Path(save).expanduser(), text)
    console.print(text, markup=False, highlight=False, soft_wrap=True, end="")
    if prints_only:
        return 0
    return start_flow(FLOW, chosen.arguments, recipe, "", in_process, console)


def _last(recipe: Recipe) -> str:
    """The stage itself, without what scores it."""
    return [stage.name for stage in plan_post_train(recipe) if stage.name not in SCORING][-1]


def _written(asked: OneStage, data: dict[str, Any], save: str, chosen: ChosenStages) -> str:
    """With the command that runs it."""
    until = f" --until {chosen.until_stage}" if chosen.until_stage else ""
    file = shlex.quote(save) if save else "FILE"
    said = f"# What `tributary {asked.kind}` runs. Saved to a file: tributary run {file}{until}\n"
    return said + as_yaml(data)


def _save(path: Path, text: str) -> None:
    """Raises InputError for a file that exists, or that cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise InputError(f"--save {path}: exists already; choose another") from None
    except OSError as error:
        raise InputError(f"--save {path}: cannot be written: {error}") from None
