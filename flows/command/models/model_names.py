"""Refuses what can be no name of a model before it is looked for, and says what was meant."""

from __future__ import annotations

from pathlib import Path

from flows.running.records import find_run, has_run
from infra.errors import InputError
from infra.hub import require_no_page
from tasks.model_folder.gguf_folder import is_gguf


def require_model_name(model: str) -> None:
    """Raises InputError for an empty name and for a file of something else."""
    if not model.strip():
        raise InputError(
            "the name of the model is empty: give a folder, a stage as RUN/STAGE, a digest or a"
            " name of the hub; is a variable of the shell not set?"
        )
    require_no_page(model)
    if Path(model).expanduser().is_file() and not is_gguf(model):
        raise InputError(
            f"{model}: is a file; a model is a folder with a config.json, a .gguf file, a stage as"
            " RUN/STAGE or a name of the hub. Were two words swapped?"
        )


def stages_of_run(wanted: str) -> str:
    """Return what to name in place of a run where a stage is asked for; empty if it is no run."""
    if not has_run(wanted):
        return ""
    named = [f"{wanted}/{stage.name}" for stage in find_run(wanted).stages().values()]
    return f"`{wanted}` is a run; name one of its stages: {', '.join(named) or 'it has none yet'}"
