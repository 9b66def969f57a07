"""Buckets of weights, and how they are sent, without servers."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from typing import Any

import pytest
import torch

from engines.weights.buckets import Bucket, OwnMemory, TrainedWeights, planned
from engines.weights.ranks import ALONE
from engines.weights.weight_stream import _send_all
from infra.errors import EngineError
from tests.parts.whole_weights import WholeTensor

pytestmark = pytest.mark.unit


def weights(*sizes: int, dtype: torch.dtype = torch.float32) -> list[WholeTensor]:
    """Tensors of so many numbers each, all different."""
    return [
        WholeTensor(f"w{i}", torch.arange(size, dtype=dtype) + 100 * i)
        for i, size in enumerate(sizes)
    ]


def names(buckets: Any) -> list[list[str]]:
    return [[weight.name for weight in bucket] for bucket in buckets]


def test_a_bucket_takes_neighbours_that_fit_and_a_larger_tensor_goes_alone() -> None:
    assert names(planned(weights(2, 3, 1, 9, 4), 20, 1)) == [["w0", "w1"], ["w2"], ["w3"], ["w4"]]


def test_what_packing_receives_counts_too() -> None:
    assert names(planned(weights(2, 2, 2), 24, 1)) == [["w0", "w1", "w2"]]
    assert names(planned(weights(2, 2, 2), 24, 2)) == [["w0"], ["w1"], ["w2"]]


def test_what_a_server_takes_only_together_is_in_one_bucket() -> None:
    """The projections of each layer's latents, wherever they lie among the others."""
    named = ["kv_a_proj_with_mqa", "o_proj", "q_a_proj", "q_b_proj"]
    layers = [
        WholeTensor(f"{layer}.self_attn.{name}.weight", torch.zeros(2))
        for layer in range(2)
        for name in named
    ]
    found = names(planned(layers, 16, 1))
    brief = [["{0}{2:.2}".format(*name.split(".")) for name in bucket] for bucket in found]
    assert brief == [["0kv", "0q_"], ["0o_", "0q_"], ["1kv", "1q_"], ["1o_", "1q_"]]


def test_a_bucket_holds_tensors_of_one_type_without_gaps() -> None:
    mixed = [*weights(3), *weights(3, 2, 2, dtype=torch.bfloat16)[1:]]
    assert [len(bucket) for bucket in planned(mixed, 1000, 1)] == [1, 2]


def test_buckets_are_copies_in_two_memories_that_take_turns() -> None:
    trained = TrainedWeights(weights(4, 4, 4), bucket_bytes=16)
    places: list[int] = []
    for i, bucket in enumerate(trained.buckets(OwnMemory())):
        assert bucket is not None
        ((name, tensor),) = bucket.tensors
        assert name == f"w{i}"
        assert torch.equal(tensor, trained.weights[i].local)
        assert bucket.flat.nbytes == 16
        places.append(bucket.flat.data_ptr())
    assert places[0] == places[2] != places[1]


def _bucket(size: int) -> Bucket:
    return Bucket(torch.zeros(size, dtype=torch.uint8), [])


def test_the_next_bucket_is_packed_while_one_is_sent_and_never_a_third() -> None:
    events: list[str] = []

    def rest() -> Any:
        for i in (2, 3):
            events.append(f"pack {i}")
            yield _bucket(i)

    class Sending(Future[None]):
        def result(self, timeout: float | None = None) -> None:
            events.append("sent")
            super().result(timeout)

    def send(bucket: Bucket) -> list[Future[Any]]:
        events.append(f"send {bucket.flat.nbytes}")
        future = Sending()
        future.set_result(None)
        return [future]

    assert _send_all(deque([_bucket(0), _bucket(1)]), rest(), send) == 6
    assert events == [
        *("send 0", "sent"),
        *("send 1", "pack 2", "sent"),
        *("send 2", "pack 3", "sent"),
        *("send 3", "sent"),
    ]


def test_after_a_refusal_nothing_is_sent_but_all_is_packed_for_the_sake_of_the_peers() -> None:
    packed: list[int] = []
    sent: list[int] = []

    def rest() -> Any:
        for i in (2, 3):
            packed.append(i)
            yield _bucket(i)

    def send(bucket: Bucket) -> list[Future[Any]]:
        sent.append(bucket.flat.nbytes)
        raise EngineError("refused")

    with pytest.raises(EngineError, match="refused"):
        _send_all(deque([_bucket(0), _bucket(1)]), rest(), send)
    assert (sent, packed) == ([0], [2, 3])


def test_a_rank_alone_settles_at_once() -> None:
    assert ALONE.settle(lambda: 3) == 3
    assert ALONE.from_leader(lambda: 4) == 4
    assert ALONE.gather(5) == [5]
    with pytest.raises(ValueError, match="no"):
        ALONE.settle(lambda: int("no"))
