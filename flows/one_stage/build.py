"""Builds the recipe that one stage stands for; `tributary sft`, `rl` and the other kinds' commands
print, save and run it.
"""

from __future__ import annotations

import re
import shlex
import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import ceil, inf
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from curricula.built_in_curricula import OF_LIBRARIES, OF_ROWS
from curricula.built_in_curricula import build as build_curriculum
from curricula.prompt_files.prompt_curriculum import Files
from engines.families.common.model_config import usable_positions
from engines.types import Split
from flows.checks.engines import model_config
from flows.checks.trial.live_parts import leave_out_for
from flows.command.app import CommandConsole
from flows.command.models.named_artifacts import model_place
from flows.command.run_command import start_flow
from flows.explain import explain
from flows.load import apply_changes, as_yaml, validate_recipe
from flows.one_stage.one_domain import (
    OneStage,
    columns_of,
    domain_of,
    expert_name,
    trained_comparisons,
)
from flows.recipe import MAX_NAME, Recipe
from infra.data_files.chunks import LocalFiles
from infra.data_files.files import find_files, require_names
from infra.errors import InputError, TrainingStopped
from infra.hub import is_hub_name
from tasks.base.spec import BaseSettings
from tasks.domain import Domain
from tasks.evaluate.spec import EvaluateSettings
from tasks.model_folder.model_files import beside, template_beside

BATCH_SIZE = 16
STEPS = {"sft": 200, "rl": 100}
"""where no files say how many there are"""
FEW = 20
"""steps from which a pass over rows is no short one"""


def recipe_data(asked: OneStage) -> dict[str, Any]:
    """Write the recipe as a person would, with absolute paths and changes made. Raises
    InputError."""
    folder = Path.cwd()
    asked = _placed(asked, folder)
    name = expert_name(asked)
    domain, hooks = domain_of(asked)
    base = {"folder": model_place(asked.model, asked.root)}
    base |= {"template": asked.template} if asked.template else {}
    if domain and asked.max_new_tokens is None:
        domain["max_new_tokens"] = _budget(domain["max_new_tokens"], base)
    expert = {"domain": domain} if domain else {}
    with _on_path(hooks):
        path = _path(asked, domain)
        scores = asked.scores | _problems(asked, domain) if domain and asked.evaluates else {}
    data: dict[str, Any] = {
        "name": asked.name or _recipe_name(f"{asked.kind}-{name}"),
        "seed": asked.seed,
        "base": base,
        "experts": {name: {**expert, "path": path}},
    }
    if scores:
        data["evaluate"] = scores
    elif domain and not asked.evaluates:
        data["evaluate"] = None
    if asked.lm_folder and not asked.lm_tasks:
        raise InputError("--lm-eval-folder: name its tasks by --lm-eval, too")
    if asked.lm_tasks:
        folder_of = {"folder": asked.lm_folder} if asked.lm_folder else {}
        data["lm_eval"] = {"tasks": list(asked.lm_tasks), **folder_of}
    if hooks:
        data["hooks"] = hooks
    apply_changes(data, asked.changes)
    return data


def _budget(usual: int, base: Mapping[str, Any]) -> int:
    """Return how many tokens an answer may have where nobody said so: as usual, or half of what the
    model's context has, if that is less. A hub is not asked: its models have room."""
    if is_hub_name(base["folder"]):
        return usual
    positions = usable_positions(model_config(BaseSettings.model_validate(base)) or {})
    return usual if positions is None else max(min(usual, positions // 2), 1)


def validated(asked: OneStage, data: dict[str, Any]) -> Recipe:
    return validate_recipe(data, f"tributary {asked.kind}")


def _placed(asked: OneStage, folder: Path) -> OneStage:
    """Files as a recipe that lies anywhere names them."""
    for files in filter(None, (asked.data, asked.held_out)):
        require_names(files)
    return replace(
        asked,
        template=template_beside(asked.template, folder),
        data=[beside(file, folder) for file in asked.data],
        held_out=[beside(file, folder) for file in asked.held_out],
        lm_folder=beside(asked.lm_folder, folder) if asked.lm_folder else "",
    )


def _path(asked: OneStage, domain: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    match asked.kind:
        case "evaluate":
            return []
        case "distill":
            rows = _prompts(asked, domain, "distill")
            every = {"problems": rows} if rows else {}
            return [{"distill": every | asked.settings}]
        case "rl":
            return [{"rl": {"steps": STEPS["rl"], **asked.settings}}]
        case "sft" | "preference" | "reward":
            return [{asked.kind: _from_rows(asked)}]


def _from_rows(asked: OneStage) -> dict[str, Any]:
    settings: dict[str, Any] = {"batch_size": BATCH_SIZE, **asked.settings}
    steps = settings.pop("steps", None)
    if asked.epochs is not None and (steps is not None or not asked.data):
        other = "--steps says how long it trains" if steps is not None else "there are no --data"
        raise InputError(f"--epochs {asked.epochs:g}: {other}; leave one of them out")
    if steps is None:
        batch = settings["batch_size"]
        if batch < 1:
            raise InputError(f"--batch-size {batch}: at least 1")
        epochs = 1.0 if asked.epochs is None else asked.epochs
        if not 0 < epochs < inf:
            raise InputError(f"--epochs {epochs}: a number of passes above 0, e.g. 2 or 0.5")
        passed = _learned(asked) * epochs if asked.data else inf
        if batch > max(passed, BATCH_SIZE):
            raise InputError(
                f"--batch-size {batch}: the files give {ceil(passed)} rows to learn in"
                f" {epochs:g} passes; give at most as many, or more --epochs"
            )
        steps = ceil(passed / batch) if asked.data else STEPS["sft"]
    optimizer = settings.pop("optimizer")
    optimizer |= {"decay": "cosine", "min_lr_ratio": 0.1, "warmup_steps": steps // 30}
    written = {"steps": steps, **settings, "optimizer": optimizer}
    if asked.data:
        written["data"] = _data(asked)
    return written


def _data(asked: OneStage) -> dict[str, Any]:
    columns = {"columns": columns_of(asked.columns)} if asked.columns else {}
    return {"files": list(asked.data), **columns}


def _problems(asked: OneStage, domain: Mapping[str, Any]) -> dict[str, Any]:
    """Return how many to evaluate, where files hold out fewer than usual."""
    if "problems" in asked.scores:
        return {}
    usual = EvaluateSettings.model_fields["problems"].default
    held_out = _prompts(asked, domain, "heldout")
    return {"problems": min(usual, held_out)} if held_out else {}


def _prompts(asked: OneStage, domain: Mapping[str, Any] | None, split: Split) -> int:
    """Return how many rows of the user's own prompts, or of a library's task, are in the split and
    fit into the model's context; 0 for another curriculum.

    Raises InputError, also for too many bad rows: nothing was started."""
    if domain is None or domain["curriculum"]["name"] not in OF_ROWS:
        return 0
    if domain["curriculum"]["name"] in OF_LIBRARIES:
        tasks: Any = build_curriculum(**domain["curriculum"])
        return tasks.num_rows(split)
    try:
        rows = Files(**Domain.model_validate(domain).curriculum.options)
    except ValidationError as error:
        raise InputError(f"tributary {asked.kind}: {'; '.join(explain(error, Domain))}") from None
    place = model_place(asked.model, asked.root)
    try:
        leave_out_for(rows, place, asked.template or None)
        return rows.num_rows(split)
    except TrainingStopped as error:
        raise InputError(str(error)) from None


@contextmanager
def _on_path(hooks: Sequence[str]) -> Generator[None]:
    """The folders of these files."""
    before = list(sys.path)
    sys.path += [str(Path(hook).parent) for hook in hooks]
    try:
        yield
    finally:
        sys.path[:] = before


def _learned(asked: OneStage) -> float:
    """Return what of the files is learned, as a batch counts it: rows, or comparisons. Raises
    InputError for files that are not there or hold no row."""
    with tempfile.TemporaryDirectory(prefix="tributary-rows-") as scratch:
        files = LocalFiles(find_files(asked.data), Path(scratch))
        if not files.num_rows:
            raise InputError(f"--data {' '.join(asked.data)}: the files hold no row")
        if asked.kind == "sft":
            return files.num_rows
        return trained_comparisons(asked.kind, asked.settings, _data(asked), files)


def _recipe_name(spoken: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", spoken.lower())[:MAX_NAME].strip("-")


FLOW = "post-train"


def start_one(
    asked: OneStage,
    prints_only: bool,
    save: str,
    in_process: bool,
    console: CommandConsole,
) -> int:
    """Print and save the recipe; run it unless `prints_only`; -> exit code."""
    try:
        data = recipe_data(asked)
    except InputError as error:  # in a recipe the field is called so
        raise InputError(re.sub(r"^files: ", "--data: ", str(error))) from None
    recipe = validated(asked, data)
    text = _written(asked, data, recipe, save, prints_only)
    if save:
        _save(Path(save).expanduser(), text)
    console.print(text, markup=False, highlight=False, soft_wrap=True, end="")
    if prints_only:
        return 0
    return start_flow(FLOW, {}, recipe, "", in_process, console)


def _written(
    asked: OneStage, data: dict[str, Any], recipe: Recipe, save: str, prints_only: bool
) -> str:
    """Return the recipe, with the command that runs it."""
    file = shlex.quote(save) if save else "FILE"
    said = f"# The recipe that `tributary {asked.kind}` runs; from a file: tributary run {file}\n"
    if prints_only:
        said += f"# No reward was tried, and few rows were read: tributary check {file} does that\n"
    if _steps_of_rows(asked, recipe) < FEW:
        said += "# So few steps teach little: --epochs passes the rows more often than once\n"
    return said + as_yaml(data)


def _steps_of_rows(asked: OneStage, recipe: Recipe) -> float:
    """Return how many the files alone ask for; inf where somebody chose their number."""
    if not asked.data or asked.epochs is not None or "steps" in asked.settings:
        return inf
    stages = [stage for expert in recipe.experts.values() for stage in expert.path]
    return min((getattr(stage.settings, "steps", inf) for stage in stages), default=inf)


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
