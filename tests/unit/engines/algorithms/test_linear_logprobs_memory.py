"""Logprobs from hidden states: how much memory they take, and how many passes."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from engines.algorithms import linear_logprobs as module
from engines.algorithms.linear_logprobs import linear_logprobs
from engines.memory import activations as tiling

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
    monkeypatch.setitem(tiling.TILE_BYTES, "cpu", 4 * 200 * 50)
    monkeypatch.setattr(tiling, "MIN_COLUMNS", 1)
    hidden, weight, labels = inputs(200, 400)
    with Watch() as watch:
        logprobs, entropies = linear_logprobs(hidden, weight, labels)
        (logprobs + entropies).sum().backward()
    # Two buffers of 200 rows and 50 columns in one; all logits would be 200 x 400.
    assert watch.entries == 2 * 200 * 50
    assert weight.grad is not None


def test_a_tile_is_worked_on_in_the_same_memory_as_the_last(monkeypatch) -> None:
    monkeypatch.setitem(tiling.TILE_BYTES, "cpu", 4 * ROWS * 6)
    monkeypatch.setattr(tiling, "MIN_COLUMNS", 1)
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
    monkeypatch.setitem(tiling.TILE_BYTES, "cpu", TILE)
    monkeypatch.setattr(tiling, "KEPT_BYTES", kept_bytes)
    monkeypatch.setattr(tiling, "MIN_COLUMNS", 1)
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

    monkeypatch.setitem(tiling.TILE_BYTES, "cpu", 400)
    monkeypatch.setattr(tiling, "MIN_COLUMNS", 30)
    # 400 bytes are 100 columns of one row, and 10 of ten, which is too few.
    assert columns(1, 100) == 100
    assert columns(1, 101) == 51
    assert columns(10, 90) == 30
    assert columns(10, 91) == 23


def test_the_sizes_that_were_measured() -> None:
    assert tiling.TILE_BYTES == {"cpu": 8_388_608, "cuda": 268_435_456}
    assert tiling.MIN_COLUMNS == 1024
    assert tiling.KEPT_BYTES == 536_870_912


@pytest.mark.parametrize("rows", [3, 6, 7])
def test_a_second_backward_pass_makes_again_what_the_first_used_up(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(tiling.TILE_BYTES, "cpu", 4 * rows * 5)
    monkeypatch.setattr(tiling, "MIN_COLUMNS", 1)
    hidden, weight, labels = inputs(rows)
    logprobs, entropies = linear_logprobs(hidden, weight, labels)
    total = (2 * logprobs - entropies).sum()
    first, again = (torch.autograd.grad(total, [hidden, weight], retain_graph=True) for _ in "ab")
    for one, other in zip(first, again, strict=True):
        assert torch.equal(one, other)
        assert one.untyped_storage().data_ptr() != other.untyped_storage().data_ptr()


# How long a large one takes on a GPU, computed: nothing is allocated

ARITHMETIC, MEMORY = 650e12, 2.7e12
"""FLOPs in bf16 and bytes a second that an H100 reaches"""


class Clock(TorchDispatchMode):
    """Seconds of all operations: a product's by its FLOPs, any other's by the bytes that it reads
    and writes, once each."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        match func.overloadpacket.__name__:
            case "mm":
                self.seconds += 2 * args[0].numel() * args[1].size(1) / ARITHMETIC
            case "gather" | "scatter_add" | "scatter_add_":
                pass  # one number of each row
            case name if not (func.is_view or name in ("device", "detach") or "empty" in name):
                read = [each for key, each in kwargs.items() if key != "out"]
                self.moved(args, read, out)
            case _:
                pass
        return out

    def moved(self, *tensors: Any) -> None:
        found = [each for each in tree_leaves(tensors) if isinstance(each, Tensor)]
        self.seconds += sum(each.nbytes for each in found) / MEMORY


@pytest.mark.parametrize("hidden_size", [1024, 4096])
def test_fused_it_takes_no_longer_than_log_softmax_on_a_gpu(
    hidden_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """16,384 rows of a vocabulary of 151,936, there and back, tiles as wide as on a GPU."""
    for sizes in (tiling.TILE_BYTES, tiling.COLUMNS_OF):
        monkeypatch.setitem(sizes, "cpu", sizes["cuda"])

    def in_one(function: Any) -> Any:
        def run(*given: Any) -> Any:
            before = clock.seconds
            out = function(*given)
            clock.seconds = before
            clock.moved(given, out)
            return out

        return run

    monkeypatch.setattr(module, "_compiled", in_one)
    seconds: dict[str, float] = {}
    for how in ("log_softmax", "plain", "fused"):
        with FakeTensorMode(), Clock() as clock:
            hidden = torch.empty(16_384, hidden_size, dtype=torch.bfloat16).requires_grad_()
            weight = torch.empty(151_936, hidden_size, dtype=torch.bfloat16).requires_grad_()
            labels = torch.zeros(len(hidden), dtype=torch.long)
            if how == "log_softmax":
                all_logprobs = (hidden @ weight.t()).float().log_softmax(-1)
                logprobs = all_logprobs.gather(1, labels[:, None])[:, 0]
            else:
                logprobs = linear_logprobs(hidden, weight, labels, fused=how == "fused")[0]
            logprobs.sum().backward()
        seconds[how] = clock.seconds
    assert seconds["fused"] <= 1.1 * seconds["log_softmax"]
    assert seconds["plain"] > 1.1 * seconds["log_softmax"]
