"""`tributary test-hook`: the contract that a user's own advantage or loss must keep."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any, get_args

from rich.console import Console

from engines.algorithms.choices import Need
from infra.errors import InputError
from infra.hooks import check_options, resolve
from infra.user_files import install_hooks, read_hooks

KINDS = ("advantage", "loss")


def show_hook(path: str, kind: str, options: str, needs: str, console: Console) -> int:
    """Print each broken promise; 0 if there is none, 1 otherwise."""
    declared = _needs(needs)
    name = _importable(path)
    kind = kind or kind_of(name)
    if kind not in KINDS:
        raise InputError(f"test-hook: --kind is {' or '.join(KINDS)}, not {kind!r}")
    given = _options(options)
    faults = hook_faults(kind, name, given, declared)
    for check, saw in faults:
        console.print(f"[red]fails[/] {check}: {saw}")
    if faults:
        return 1
    console.print(f"[green]keeps the contract[/] of a custom {kind}: {name}")
    return 0


def hook_faults(
    kind: str, name: str, options: dict[str, Any], needs: Collection[Need] = ("spread",)
) -> list[tuple[str, str]]:
    """(check, what it saw) of every broken promise. Raises InputError for a wrong path or option.

    Imports torch.
    """
    from engines.algorithms.build import custom
    from engines.algorithms.contract import advantage_faults, loss_faults

    part = custom(kind, name, options)
    found = advantage_faults(part, needs) if kind == "advantage" else loss_faults(part)
    return [(fault.check, fault.saw) for fault in found]


def kind_of(name: str) -> str:
    """`advantage` or `loss`, by the type of the function's first argument."""
    function = resolve("hook", name, {})
    check_options("hook", name, function, {})
    annotations = [str(a) for a in getattr(function, "__annotations__", {}).values()]
    for kind, marker in zip(KINDS, ("StepTokens", "LossInputs"), strict=True):
        if any(marker in annotation for annotation in annotations):
            return kind
    raise InputError(
        f"test-hook: {name} does not show its kind: annotate its argument as `StepTokens` (an"
        " advantage) or `LossInputs` (a loss), or give --kind"
    )


def _importable(path: str) -> str:
    """`module:attribute`, also found in the command's folder, or `file.py:attribute`."""
    file, colon, attribute = path.partition(":")
    if not colon or not attribute:
        raise InputError(f"test-hook: {path!r} is not of the form `module:function`")
    if file.endswith(".py"):
        install_hooks(read_hooks([file]))
        return f"{Path(file).stem}:{attribute}"
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    return path


def _needs(text: str) -> list[Need]:
    given = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := set(given) - set(get_args(Need)):
        raise InputError(
            f"test-hook: --needs has {', '.join(sorted(unknown))}; it is a list, separated by"
            f" commas, of {', '.join(get_args(Need))}"
        )
    return [need for need in get_args(Need) if need in given]


def _options(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except json.JSONDecodeError as error:
        raise InputError(f"test-hook: --options is not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise InputError("test-hook: --options must be a JSON object, e.g. '{\"beta\": 0.1}'")
    return found
