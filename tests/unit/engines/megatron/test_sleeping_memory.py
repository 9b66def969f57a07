"""What a rank's tensors held comes back to the bit, in the same places; meanwhile it takes no
memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import psutil
import pytest
import torch

from engines.megatron.train.sleep import HostMemory, on_device, put_to_sleep, starts_of
from engines.memory.model_size import KNOWN
from infra.cuda import allocator_environment

pytestmark = pytest.mark.unit


def test_views_of_one_memory_are_kept_once_and_hold_the_same_bits_again() -> None:
    whole = torch.randn(100_000)
    view, other = whole[10:20].view(2, 5), torch.arange(7)
    before = whole.clone()
    asleep = put_to_sleep([view, whole, other, torch.empty(0)], [])
    assert asleep.num_bytes == 100_000 * 4 + 7 * 8
    assert not torch.equal(whole, before)
    asleep.wake()
    assert torch.equal(whole, before)
    view.zero_()
    assert whole[10:20].sum() == 0
    assert other.tolist() == list(range(7))


def test_what_is_not_worth_keeping_comes_back_as_zeros() -> None:
    kept, gradients = torch.ones(5), torch.full((1000,), float("nan"))
    asleep = put_to_sleep([kept], [gradients, kept])
    asleep.wake()
    assert gradients.tolist() == [0.0] * 1000
    assert kept.tolist() == [1.0] * 5


def test_what_is_shared_with_something_that_stays_stays() -> None:
    weights, moments = torch.ones(1000), torch.full((1000,), 2.0)
    asleep = put_to_sleep([weights[:10], moments], [], besides=[weights[500:]])
    assert asleep.num_bytes == 4000
    assert weights.tolist() == [1.0] * 1000
    asleep.wake()
    assert moments.tolist() == [2.0] * 1000


def test_what_is_left_is_named_with_the_largest_first() -> None:
    before, _ = on_device(())
    kept = [torch.zeros(3_000_000), torch.zeros(1000, 7_000, dtype=torch.bfloat16)]
    view = kept[0][:5]
    left, largest = on_device(())
    assert left - before == 12_000_000 + 14_000_000
    assert largest[:2] == ("14.0 MB bfloat16[1000, 7000]", "12.0 MB float32[3000000]") or (
        largest[1] == "12.0 MB float32[5]"
    )
    asleep = put_to_sleep(kept, [])
    assert on_device(asleep.addresses)[0] == before
    asleep.wake()
    assert view.tolist() == [0.0] * 5


def test_tensors_that_a_compiler_traced_with_are_no_memory() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    before, _ = on_device(())
    with FakeTensorMode():
        traced = torch.empty(1_000_000)
    assert on_device(())[0] == before
    assert len(traced) == 1_000_000


def test_at_least_four_fifths_of_the_memory_goes_back_to_the_system() -> None:
    tensors = [torch.randn(size) for size in (20_000_000, 5_000_000, *[1000] * 500)]
    held, num_bytes = psutil.Process().memory_info().rss, sum(x.nbytes for x in tensors)
    asleep = put_to_sleep(tensors, [])
    returned = held - psutil.Process().memory_info().rss
    asleep.wake()
    assert asleep.num_bytes == num_bytes
    assert returned >= 0.8 * num_bytes


def test_in_host_memory_all_parts_share_a_block_that_is_used_again() -> None:
    """As on a GPU, whose tensors are empty meanwhile."""
    room, whole, small = HostMemory(), torch.randn(100_000), torch.arange(7)
    view, before = whole[10:20].view(2, 5), whole.clone()
    gradients = torch.full((1000,), float("nan"))
    for _ in range(2):
        asleep = put_to_sleep([view, whole, small], [gradients], host=room)
        assert room.num_bytes == 400_384 + 512, "each begins at a multiple of 512"
        assert asleep.num_bytes == 400_000 + 56 + 4000
        assert {x.untyped_storage().nbytes() for x in (whole, small, gradients)} == {0}
        block = {held.untyped_storage().data_ptr() for _, held in asleep.in_host_memory}
        asleep.wake()
        assert torch.equal(whole, before)
        assert torch.equal(view, before[10:20].view(2, 5))
        assert small.tolist() == list(range(7))
        assert gradients.tolist() == [0.0] * 1000
        gradients.fill_(float("nan"))
    again = put_to_sleep([whole], [], host=room)
    assert {held.untyped_storage().data_ptr() for _, held in again.in_host_memory} == block
    again.wake()


@pytest.mark.parametrize("replicas", [1, 8])
@pytest.mark.parametrize("name", ["Qwen3-0.6B", "Qwen3-4B", "Qwen3-8B"])
def test_what_sleeps_takes_as_much_host_memory_as_it_has_bytes(name: str, replicas: int) -> None:
    """By the rule with which torch rounds pinned blocks; one for each tensor took half as much
    again without the setting that ranks get."""
    counts = list(_weights(KNOWN[name]))
    weights = [2 * sum(counts)]  # one flat buffer, in bf16
    optimizer = [4 * -(-count // replicas) for count in counts for _ in range(3)]
    state = sum(weights) + sum(optimizer)
    (setting,) = allocator_environment().values()
    assert setting == "pinned_max_round_threshold_mb:1"
    held = sum(_pinned(starts_of(sizes)[-1], 1 << 20) for sizes in (weights, optimizer))
    assert 1 <= held / state <= 1.001
    assert sum(_pinned(size, 1 << 62) for size in weights + optimizer) / state > 1.2


def _weights(config: Mapping[str, Any]) -> Iterator[int]:
    """Numbers in each tensor of a dense Qwen3, as Megatron has it."""
    hidden, ffn, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = (config[f"num_{x}_heads"] * head for x in ("attention", "key_value"))
    for _ in range(config["num_hidden_layers"]):
        yield from (hidden * (queries + 2 * keys), hidden * queries, 3 * hidden * ffn)
        yield from (hidden, hidden, head, head)
    yield from (config["vocab_size"] * hidden, hidden)


def _pinned(size: int, threshold: int) -> int:
    """What torch's allocator of pinned memory takes for a block."""
    return size if size > threshold else 1 << (size - 1).bit_length()
