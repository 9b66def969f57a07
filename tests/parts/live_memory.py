"""How many bytes of tensors live at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveMemory(TorchDispatchMode):
    """`peak` is the most that tensors made inside `with` had together, on one thread."""

    def __init__(self, known: Sequence[torch.Tensor]) -> None:
        """`known` tensors were there before."""
        super().__init__()
        self.peak = 0
        self._known = {tensor.untyped_storage()._cdata for tensor in known}
        self._made: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(made):
            if isinstance(leaf, torch.Tensor):
                storage = leaf.untyped_storage()
                if storage._cdata not in self._known:
                    self._made[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self._made = {k: (ref, n) for k, (ref, n) in self._made.items() if not ref.expired()}
        self.peak = max(self.peak, sum(size for _, size in self._made.values()))
        return made
