"""A server's memory by hand: SGLang's pools, as SGLang makes them."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Any

import pytest

from engines.memory.server_memory import ServerNeeds, server_memory
from tests.unit.engines.memory.test_model_size import small

pytestmark = pytest.mark.unit

MIB = 2**20
GB = 10**9


def needs(tp: int = 1, device: int | None = None, **options: Any) -> ServerNeeds:
    return ServerNeeds(tp, 100, 1000, options, device)


def test_on_a_cpu_weights_and_cache_are_fp32() -> None:
    """The vocabulary is padded to 64; a token: 2 (keys, values) x 2 layers x 4 x 4 bytes = 64."""
    memory = server_memory(small(), needs())
    assert memory.weights == 4 * (2 * 600 + 64 * 8 + 8)
    assert memory.cache == 1001 * 64
    # Half as many requests as tokens, and a row more; 4 tokens more than the context each.
    assert memory.requests == 501 * 104 * 4
    assert memory.runtime == 0
    assert memory.total == memory.weights + memory.cache + memory.requests


def test_on_gpus_both_are_16_bits_unless_the_options_say_otherwise() -> None:
    assert server_memory(small(), needs(device=80 * GB)).cache == 1001 * 32
    assert server_memory(small(), needs(device=80 * GB, dtype="float32")).cache == 1001 * 64
    eight = server_memory(small(), needs(device=80 * GB, kv_cache_dtype="fp8_e4m3"))
    assert eight.cache == 1001 * 16


def test_devices_share_weights_and_kv_heads_but_every_device_has_one_head_at_least() -> None:
    size = small(num_attention_heads=4, num_key_value_heads=2)
    one, two, four = (server_memory(size, needs(tp)) for tp in (1, 2, 4))
    assert one.cache == 2 * two.cache == 2 * four.cache
    # Queries 16, keys 8: 8 x (16 + 8 + 8) + 16 x 8 + 3 x 8 x 16 = 768 a layer, norms 24.
    assert two.weights == 4 * ((2 * 768 + 64 * 8) // 2 + 2 * 24 + 8)


def test_how_many_requests_may_run_is_sglangs_choice_or_the_recipes() -> None:
    """512 for each context that the cache holds, within 2048 and 4096."""
    many = ServerNeeds(1, 100, 100_000, {})
    assert server_memory(small(), many).requests == 4097 * 104 * 4
    some = ServerNeeds(1, 100_000, 100_000, {})
    assert server_memory(small(), some).requests == 2049 * 100_004 * 4
    asked = ServerNeeds(1, 100, 100_000, {"max_running_requests": 8})
    assert server_memory(small(), asked).requests == 9 * 104 * 4


def test_sglang_keeps_a_part_of_each_gpu_free() -> None:
    stated = server_memory(small(), needs(device=80 * GB, mem_fraction_static=0.8))
    assert stated.runtime == pytest.approx(16 * GB, abs=2)
    # 512 + 1.5 x 8192 + 1 / 8 x 1024 + 2 x 256 MiB
    large = server_memory(small(), needs(device=80 * GB))
    assert large.runtime == 13_440 * MIB
    # 512 + 1.5 x 4096 + 128 + 2 x 32
    assert server_memory(small(), needs(device=40 * GB)).runtime == 6_848 * MIB


def test_in_fp8_the_layers_matrices_are_bytes_with_a_scale_for_each_block() -> None:
    """600 weights a layer, of which norms have 24; a CPU also has what it multiplies by."""
    norms, tops = 2 * 24 + 8, 64 * 8
    matrices = 2 * 600 - 2 * 24
    plain = needs(device=80 * GB)
    assert server_memory(small(), plain).weights == 2 * (matrices + norms + tops)
    assert server_memory(small(), replace(plain, in_fp8=True)).weights == ceil(
        matrices * (1 + 4 / 128**2) + 2 * (norms + tops)
    )
    on_cpu = server_memory(small(), replace(needs(), in_fp8=True)).weights
    assert on_cpu == ceil(matrices * (5 + 4 / 128**2) + 4 * (norms + tops))
