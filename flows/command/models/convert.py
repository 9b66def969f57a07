"""`tributary convert`: HF to Megatron's dist_checkpointing and back, with logits compared."""

from __future__ import annotations

import warnings
from pathlib import Path

from rich.console import Console

from engines.megatron.convert.dist_folder import is_local_dist_folder
from flows.command.find_artifact import find_model
from infra.errors import InputError
from infra.new_folder import new_folder, require_free


def convert(source: str, folder: str, like: str, root: str, console: Console) -> int:
    """-> exit code. Raises InputError, before anything is written, for what cannot be converted."""
    target = Path(folder).expanduser()
    require_free(target)
    given = Path(source).expanduser()
    is_dist = is_local_dist_folder(given)
    told = _config_folder(given, like, root) if is_dist else find_model(source, root)
    if like and not is_dist:
        raise InputError("--like is for a dist_checkpointing folder; an HF folder has all it needs")
    with new_folder(target) as draft, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Megatron-core tells of all that this machine lacks
        difference = _converted(given if is_dist else None, told, draft)
    what = "an HF folder" if is_dist else "a dist_checkpointing folder"
    console.print(
        f"{target}: {what}; logits of Megatron-core and transformers differ by at most"
        f" {difference:.3g} in float32",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    return 0


def _converted(dist: Path | None, hf: Path, draft: Path) -> float:
    from engines.megatron.convert.convert import largest_difference, write_dist_folder
    from engines.megatron.convert.write_hf import write_hf_folder

    if dist is None:
        write_dist_folder(hf, draft)
        return largest_difference(draft, hf)
    write_hf_folder(dist, hf, draft)
    return largest_difference(dist, draft)


def _config_folder(dist: Path, like: str, root: str) -> Path:
    if like:
        return find_model(like, root)
    if not (dist / "config.json").is_file():
        raise InputError(
            f"{dist} has no config.json: name a model with its configuration and tokenizer, e.g."
            " --like hf:Qwen/Qwen3-0.6B, or put those files into the folder"
        )
    return dist
