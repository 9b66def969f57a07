"""Logprobs from hidden states: how much memory they take, and how many passes."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from engines.algorithms import linear_logprobs as module
from engines.algorithms.linear_logprobs import linear_logprobs

pytestmark = pytest.mark.unit

ROWS, HIDDEN = 7, 6
TILE = 4 * ROWS * 6
"""bytes of one of 6 columns"""


def inputs(rows: int = ROWS, vocab: int = 23) -> tuple[Tensor, Tensor, Tensor]:
    hidden = torch.randn(rows, HIDDEN).requires_grad_()
    weight = torch.randn(vocab, HIDDEN).requires_grad_()
    return hidden, weight, torch.randint(0, vocab, (rows,))


class Watch(TorchDispatchMode):
    """What operations ran, and what they gave out."""

    def __init__(self) -> None:
        super().__init__()
        self.entries = 0
        """of the largest tensor"""
        self.ran: Counter[str] = Counter()
        self.memory: dict[int, set[int]] = defaultdict(set)
        """entries of a tensor -> the storages that tensors of that many lie in"""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        self.ran[func.overloadpacket.__name__] += 1
        if isinstance(out, Tensor):
            self.entries = max(self.entries, out.numel())
            self.memory[out.numel()].add(out.untyped_storage().data_ptr())
        return out


def test_no_tensor_holds_all_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module.TILE_BYTES, "cpu", 4 * 200 * 50)
    monkeypatch.setattr(module, "MIN_COLUMNS", 1)
    hidden, weight, labels = inputs(200, 400)
    with Watch() as watch:
        logprobs, entropies = linear_logprobs(hidden, weight, labels)
        (logprobs + entropies).sum().backward()
    # Two buffers of 200 rows and 50 columns in one; all logits would be 200 x 400.
    assert watch.entries == 2 * 200 * 50
    assert weight.grad is not None


def test_a_tile_is_worked_on_in_the_same_memory_as_the_last(monkeypatch) -> None:
    monkeypatch.setitem(module.TILE_BYTES, "cpu", 4 * ROWS * 6)
    monkeypatch.setattr(module, "MIN_COLUMNS", 1)
    hidden, weight, labels = inputs(vocab=24)
    with Watch() as watch, torch.no_grad():
        linear_logprobs(hidden, weight, labels)
    # Logits in one, the two steps to the exponentials in the other; scoring keeps none.
    assert watch.ran["mm"] == 4
    assert len(watch.memory[ROWS * 6]) == 2


@pytest.mark.parametrize(
    ("kept_bytes", "needed", "products"),
    [
        # Four tiles. Forward one product each, backward one each for what needs a gradient, and
        # one each for those that were not kept. A tile has 42 entries, the weight 144: three fit.
        (TILE, "both", 4 + 8),
        (TILE - 1, "both", 4 + 8 + 1),
        (0, "both", 4 + 8 + 4),
        (4 * TILE, "hidden", 4 + 4),
        (2 * TILE, "hidden", 4 + 4 + 2),
        (TILE, "weight", 4 + 4),
    ],
)
def test_kept_logits_are_not_computed_again(
    kept_bytes: int, needed: str, products: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(module.TILE_BYTES, "cpu", TILE)
    monkeypatch.setattr(module, "KEPT_BYTES", kept_bytes)
    monkeypatch.setattr(module, "MIN_COLUMNS", 1)
    hidden, weight, labels = inputs(vocab=24)
    hidden.requires_grad_(needed != "weight")
    weight.requires_grad_(needed != "hidden")
    with Watch() as watch:
        linear_logprobs(hidden, weight, labels)[0].sum().backward()
    assert watch.ran["mm"] == products


def test_entropies_that_nobody_uses_cost_no_pass_backward() -> None:
    hidden, weight, labels = inputs()
    logprobs, entropies = linear_logprobs(hidden.detach(), weight, labels)
    with Watch() as watch:
        logprobs.sum().backward(retain_graph=True)
    assert watch.ran["add_"] == 0
    with Watch() as watch:
        entropies.sum().backward()
    assert watch.ran["add_"] > 0


def test_tiles_are_even_and_at_least_as_wide_as_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the buffer of the two steps after the logits: 2 x rows x columns of the widest."""

    def columns(rows: int, vocab: int) -> int:
        labels = torch.zeros(rows, dtype=torch.long)
        with Watch() as watch, torch.no_grad():
            linear_logprobs(torch.zeros(rows, 1), torch.zeros(vocab, 1), labels)
        return watch.entries // (2 * rows)

    monkeypatch.setitem(module.TILE_BYTES, "cpu", 400)
    monkeypatch.setattr(module, "MIN_COLUMNS", 30)
    # 400 bytes are 100 columns of one row, and 10 of ten, which is too few.
    assert columns(1, 100) == 100
    assert columns(1, 101) == 51
    assert columns(10, 90) == 30
    assert columns(10, 91) == 23


def test_the_sizes_that_were_measured() -> None:
    assert module.TILE_BYTES == {"cpu": 8_388_608, "cuda": 67_108_864}
    assert module.MIN_COLUMNS == 1024
    assert module.KEPT_BYTES == 536_870_912


@pytest.mark.parametrize("rows", [3, 6, 7])
def test_a_second_backward_pass_makes_again_what_the_first_used_up(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(module.TILE_BYTES, "cpu", 4 * rows * 5)
    monkeypatch.setattr(module, "MIN_COLUMNS", 1)
    hidden, weight, labels = inputs(rows)
    logprobs, entropies = linear_logprobs(hidden, weight, labels)
    total = (2 * logprobs - entropies).sum()
    first, again = (torch.autograd.grad(total, [hidden, weight], retain_graph=True) for _ in "ab")
    for one, other in zip(first, again, strict=True):
        assert torch.equal(one, other)
        assert one.untyped_storage().data_ptr() != other.untyped_storage().data_ptr()
