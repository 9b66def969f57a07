"""Training on Megatron-core."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from infra.cuda import has_driver_library


def _jit_fuser(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile it at its first call: to compile is to import torch's compiler, a quarter of the time
    in which a trainer starts, and a trainer calls few of these functions, or none."""

    @functools.cache
    def compiled() -> Callable[..., Any]:
        import torch

        return torch.compile(function)

    @functools.wraps(function)
    def called(*given: Any, **named: Any) -> Any:
        return compiled()(*given, **named)

    return called


def _replace_modules() -> None:
    """Put ours in place of what Megatron imports, before it does."""
    modules: dict[str, Any] = sys.modules
    # Megatron decorates with what this module of its own offers, while it is imported.
    jit: Any = ModuleType("megatron.core.jit")
    jit.jit_fuser = _jit_fuser
    modules.setdefault(jit.__name__, jit)
    if not has_driver_library():
        # Megatron imports it where it is installed, and does without it where it is missing; on a
        # host without a driver it is neither: its import ends with an OSError that Megatron does
        # not expect.
        modules.setdefault("flash_mla", None)


_replace_modules()
