"""What a rank's tensors held comes back to the bit, in the same places; meanwhile it takes no
memory."""

from __future__ import annotations

import psutil
import pytest
import torch

from engines.megatron.train.sleep import on_device, put_to_sleep

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


def test_at_least_four_fifths_of_the_memory_goes_back_to_the_system() -> None:
    tensors = [torch.randn(size) for size in (20_000_000, 5_000_000, *[1000] * 500)]
    held, num_bytes = psutil.Process().memory_info().rss, sum(x.nbytes for x in tensors)
    asleep = put_to_sleep(tensors, [])
    returned = held - psutil.Process().memory_info().rss
    asleep.wake()
    assert asleep.num_bytes == num_bytes
    assert returned >= 0.8 * num_bytes
