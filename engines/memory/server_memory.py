"""Device memory of one SGLang server on each of its devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from engines.memory.model_size import ModelSize
from engines.weights.fp8_blocks import BLOCK

MIB = 2**20
_TABLE_BYTES = 4
"""of an entry of the table that says where each token of each request lies"""
_TABLE_MARGIN = 4
"""tokens beyond the context that SGLang gives each request"""
_MOST_REQUESTS, _FEWEST_REQUESTS, _REQUESTS_PER_CONTEXT = 4096, 2048, 512
"""by which SGLang 0.5.23 chooses how many requests may run: `resolve_max_num_reqs`"""
_HEAD_PAD = 64
"""SGLang's vocabulary is a multiple of it"""
FULL_TYPES = ("float32", "float")


@dataclass(frozen=True, slots=True)
class ServerNeeds:
    """Holds what of a fleet's settings a server's memory depends on."""

    tp: int
    context_length: int
    max_total_tokens: int
    """of the cache; with `fills_device` at least"""
    options: Mapping[str, Any]
    """`fleet.sglang`"""
    device_bytes: int | None = None
    """of a GPU; None: a CPU, where nothing is set aside"""
    fills_device: bool = False
    """whether the cache takes all that is free of a GPU"""
    in_fp8: bool = False
    """whether the layers' matrices are FP8, with a float32 scale for each block"""


@dataclass(frozen=True, slots=True)
class ServerMemory:
    """On each device of a server, in bytes."""

    weights: int
    cache: int
    """keys and values of `max_total_tokens`"""
    requests: int
    """the table of requests"""
    runtime: int
    """what SGLang keeps free for prefill, CUDA graphs and workspaces: all but mem_fraction_static
    of the device"""

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.requests + self.runtime


def server_memory(size: ModelSize, needs: ServerNeeds) -> ServerMemory:
    """On each of the server's `tp` devices."""
    return ServerMemory(
        weights=_weights(size, needs),
        cache=(needs.max_total_tokens + 1) * token_bytes(size, needs),
        requests=(_max_requests(needs) + 1) * (needs.context_length + _TABLE_MARGIN) * _TABLE_BYTES,
        runtime=0 if needs.device_bytes is None else _reserve(needs, needs.device_bytes),
    )


def token_bytes(size: ModelSize, needs: ServerNeeds) -> int:
    """Keys and values of one token on each device; a KV head lies whole on one or more devices, and
    a latent on all of them."""
    heads = max(size.keys // size.head_dim // needs.tp, 1)
    values = size.cached or 2 * heads * size.head_dim
    cache_type = str(needs.options.get("kv_cache_dtype", "auto"))
    value_bytes = 1 if cache_type.startswith("fp8") else _value_bytes(needs)
    layers = size.num_layers if size.cached_layers is None else size.cached_layers
    return layers * values * value_bytes


def _weights(size: ModelSize, needs: ServerNeeds) -> int:
    vocab = ceil(size.vocab / _HEAD_PAD) * _HEAD_PAD
    tops = (1 if size.is_tied else 2) * vocab * size.hidden
    value = _value_bytes(needs)
    plain = value if not needs.in_fp8 or needs.device_bytes is None else 0  # for a CPU's products
    matrix = plain + (1 + 4 / BLOCK**2 if needs.in_fp8 else 0)
    layers = (size.split_weights + size.expert_weights) * matrix
    return ceil((layers + tops * value) / needs.tp + (size.whole_weights + size.hidden) * value)


def _value_bytes(needs: ServerNeeds) -> int:
    """On a CPU a server of ours computes in fp32, unless its options say otherwise."""
    named = needs.options.get("dtype", "float32" if needs.device_bytes is None else "auto")
    return 4 if named in FULL_TYPES else 2


def _max_requests(needs: ServerNeeds) -> int:
    asked = needs.options.get("max_running_requests")
    if asked is None:
        fitting = int(needs.max_total_tokens / needs.context_length * _REQUESTS_PER_CONTEXT)
        asked = max(min(fitting, _MOST_REQUESTS), _FEWEST_REQUESTS)
    return min(asked, needs.max_total_tokens // 2)


def _reserve(needs: ServerNeeds, device_bytes: int) -> int:
    """All but the static share of a device; where the recipe names none, SGLang's own choice
    (`handle_gpu_memory_settings`, without what it adds for other topologies)."""
    fraction = needs.options.get("mem_fraction_static")
    if fraction is not None:
        return ceil((1 - fraction) * device_bytes)
    is_large = device_bytes > 60 * 1024 * MIB
    prefill = needs.options.get("chunked_prefill_size") or (8192 if is_large else 4096)
    graphs = (256 if needs.tp < 4 else 512) if is_large else (32 if needs.tp < 4 else 160)
    mib = 512 + 1.5 * max(prefill, 2048) + needs.tp / 8 * 1024 + 2 * graphs
    return ceil((max(mib, 10 * 1024) if is_large else mib) * MIB)
