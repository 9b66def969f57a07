"""Memory that a publish was read from stays mapped in the server: to map it anew takes as long as
to copy it, and a trainer sends from the same memory each time. What lies in a GPU's memory has been
copied when a rank is done with it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

_TARGET = (
    "sglang.srt.model_executor.model_runner_components.weight_updater"
    ".WeightUpdater._update_weights_from_flattened_bucket"
)
_MOST = 2
"""buckets that a transport sends in turn"""
_mapped: deque[Any] = deque(maxlen=_MOST)


def install() -> None:
    """Hook SGLang; torch opens memory again only if nothing of this process has it open."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(_TARGET, _keeping, HookType.AROUND)


def _keeping(
    stock: Callable[..., Any], updater: Any, *, flattened_tensor_bucket_dict: dict[str, Any]
) -> Any:
    flat = flattened_tensor_bucket_dict["flattened_tensor"]
    storage = flat.untyped_storage()
    if flat.device.type == "cpu" and all(s.data_ptr() != storage.data_ptr() for s in _mapped):
        _mapped.append(storage)
    done = stock(updater, flattened_tensor_bucket_dict=flattened_tensor_bucket_dict)
    if flat.device.type == "cuda":
        import torch

        # Copies are only queued. Each rank waits for its own, then SGLang's ranks wait for each
        # other, and only then the first one answers: the bucket's memory may be used again.
        torch.cuda.current_stream().synchronize()
    return done
