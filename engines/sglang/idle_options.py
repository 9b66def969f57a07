"""Server options that do nothing beside others, or with the ranks that a server has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from engines.sglang.server_options import RESULT_NEUTRAL

_GRAPHS = ("cuda_graph_bs_decode", "cuda_graph_max_bs_decode", "disable_cuda_graph_padding")
_OF_GPUS = (
    *_GRAPHS,
    *("disable_custom_all_reduce", "enable_memory_saver", "enable_p2p_check"),
    *("enable_tf32_matmul", "numa_node", "triton_attention_num_kv_splits"),
)
"""have no effect on a CPU, where a server has one rank and no graphs"""
_OF_RANKS = ("disable_custom_all_reduce", "enable_p2p_check")
_HEARD_OF_CLIENTS = ("max_running_requests",)
"""options by which a stage bounds what it asks of servers, whoever started them"""
Given = Mapping[str, Any]


def _shows_info(given: Given) -> bool:
    return given.get("log_level") in ("info", "debug")


def _has_triton(given: Given) -> bool:
    """Whether decoding may use it: with no backend written SGLang chooses by the GPU."""
    named = given.get("decode_attention_backend") or given.get("attention_backend")
    return named in (None, "triton")


def _has_own_attention(given: Given) -> bool:
    return not (given.get("prefill_attention_backend") and given.get("decode_attention_backend"))


_NEEDED: tuple[tuple[tuple[str, ...], Callable[[Given], bool], str], ...] = (
    (
        ("log_requests_level", "log_requests_target"),
        lambda given: bool(given.get("log_requests")),
        "without `log_requests: true`",
    ),
    (
        ("otlp_traces_endpoint",),
        lambda given: bool(given.get("enable_trace")),
        "without `enable_trace: true`",
    ),
    (
        ("enable_request_time_stats_logging",),
        _shows_info,
        "unless `log_level: info` shows what it writes",
    ),
    (
        ("decode_log_interval",),
        lambda given: _shows_info(given) or bool(given.get("enable_metrics")),
        "without `log_level: info` or `enable_metrics: true`",
    ),
    (
        ("torch_compile_max_bs",),
        lambda given: bool(given.get("enable_torch_compile")),
        "without `enable_torch_compile: true`",
    ),
    (_GRAPHS, lambda given: not given.get("disable_cuda_graph"), "with `disable_cuda_graph: true`"),
    (
        ("radix_eviction_policy",),
        lambda given: not given.get("disable_radix_cache"),
        "with `disable_radix_cache: true`",
    ),
    (
        ("enable_mixed_chunk",),
        lambda given: given.get("chunked_prefill_size") != -1,
        "with `chunked_prefill_size: -1`",
    ),
    (
        ("triton_attention_num_kv_splits",),
        _has_triton,
        "unless `triton` is the attention backend that decodes",
    ),
    (
        ("attention_backend",),
        _has_own_attention,
        "beside both `prefill_attention_backend` and `decode_attention_backend`",
    ),
)
"""options, what they need of the others, and what to say where that lacks"""


def idle_options(given: Given, tp: int) -> Iterator[str]:
    """Each as `NAME has no effect ...`, for a server of `tp` ranks; an option that is off is what
    it is without being written."""
    for names, is_met, when in _NEEDED:
        for name in names:
            if _is_on(given.get(name)) and not is_met(given):
                yield f"{name} has no effect {when}"
    for name in _OF_RANKS:
        if tp == 1 and given.get(name):
            yield f"{name} has no effect with tp_per_server 1, where no ranks send to each other"


def idle_on_cpu(given: Given) -> list[str]:
    """Options that have an effect on GPUs only."""
    return [name for name in _OF_GPUS if _is_on(given.get(name))]


def idle_at_external(given: Given) -> list[str]:
    """Options that servers which others started cannot get from us: what changes results is
    compared with what they have, and the rest is as it is."""
    kept = sorted(RESULT_NEUTRAL & given.keys() - {*_HEARD_OF_CLIENTS})
    return [name for name in kept if _is_on(given[name])]


def _is_on(value: Any) -> bool:
    return value is not None and value is not False
