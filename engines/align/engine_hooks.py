"""What SGLang's server calls to record modules: its option `forward_hooks` names `record_to`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from engines.align.points import Seen, seen_of


def hook_of(module: str, folder: Path) -> dict[str, Any]:
    """One of the server's `forward_hooks`: record a module's last run in a file of its name."""
    return {
        "name": module,
        "target_modules": [module],
        "hook_factory": f"{__name__}:{record_to.__name__}",
        "config": {"file": str(folder / f"{module}.pt")},
    }


def record_to(config: dict[str, str]) -> Callable[[Any, Any, Any], None]:
    def record(_module: Any, given: Any, made: Any) -> None:
        seen = seen_of(given, made)
        torch.save((list(seen.given), list(seen.made)), config["file"])

    return record


def read_hooks(folder: Path) -> dict[str, Seen]:
    """By module; those that the server does not have, or runs otherwise, are missing."""
    return {file.stem: Seen(*torch.load(file)) for file in folder.glob("*.pt")}
