"""Which ServerArgs a server of ours gets, and which of them do nothing beside others, or with the
ranks that a server has.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from engines.families.common.model_config import read_config, usable_positions
from engines.sglang.server_options import RESULT_NEUTRAL
from engines.sglang.spec import FleetSpec
from engines.weights.fp8_blocks import FROM_PLAIN
from infra.access import listening_host
from infra.cuda import has_cuda
from infra.errors import InputError

_ALWAYS: dict[str, Any] = {
    "skip_server_warmup": True,
    # the router tells this to everyone; by default it is the model's path
    "served_model_name": "model",
    "log_level": "warning",
    # token ids go in and out: no tokenizer, no detokenizer's work
    "skip_tokenizer_init": True,
}
_CPU: dict[str, Any] = {
    # Seeds mean something. On a GPU it costs half the speed and has not been proven: there it is
    # off, unless a recipe passes it through.
    "enable_deterministic_inference": True,
    "device": "cpu",
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "grammar_backend": "none",
    "disable_overlap_schedule": True,
    "disable_cuda_graph": True,
    # The pool is as large as `max_total_tokens` says. A server does not start if free memory falls
    # by more than this share while it loads, whoever takes it: others may start beside it.
    "mem_fraction_static": 0.5,
    # an idle server would otherwise burn half a core
    "sleep_on_idle": True,
}
_FP8: dict[str, Any] = {
    "quantization": "fp8",
    "json_model_override_args": json.dumps({"quantization_config": FROM_PLAIN}),
}
_FP8_ON_GPU: dict[str, Any] = {
    # Others may store matrices and scales anew when they are loaded, and then take no update.
    "fp8_gemm_runner_backend": "triton",
    "moe_runner_backend": "triton",
}
MEMORY_SAVER: dict[str, Any] = {"enable_memory_saver": True}
"""for a server that takes turns with a trainer on one GPU"""
# What serves by other code than the one that asks for the key, or writes the key to a file.
_NOT_WITH_A_KEY = (
    "crash_dump_folder", "encoder_only", "grpc_mode", "grpc_port", "smg_grpc_mode", "use_ray",
)  # fmt: skip
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


def server_options(
    spec: FleetSpec, model: Path, port: int, tp: int, first_device: int
) -> dict[str, Any]:
    """Fields of SGLang's ServerArgs; what the spec passes through comes last and wins.

    Raises InputError for what would leave a server without its key.
    """
    _require_closed(spec.sglang)
    options = dict(_ALWAYS) if has_cuda() else _ALWAYS | _CPU
    options |= {
        "host": listening_host(),
        "model_path": str(model),
        "port": port,
        "tp_size": tp,
    }
    dtype = served_type(spec, model)
    if not has_cuda():
        options["max_total_tokens"] = spec.least_tokens
    else:
        options["base_gpu_id"] = first_device
        if spec.max_total_tokens is not None:
            options["max_total_tokens"] = spec.max_total_tokens
        if dtype == "float32":
            # FlashAttention, which SGLang takes by itself, knows 16 bits only.
            options["attention_backend"] = "triton"
    if spec.quantization is not None:
        options |= _FP8 | (_FP8_ON_GPU if has_cuda() else {})
    if (longest := spec.context_length or _shorter_context(model)) is not None:
        options["context_length"] = longest
    return options | spec.sglang | {"dtype": dtype}


def _shorter_context(model: Path) -> int | None:
    """Return the context of a model whose texts have fewer tokens than SGLang takes from its
    config.json; None for any other, also for a folder that SGLang itself will refuse."""
    try:
        config = read_config(model)
    except InputError:
        return None
    usable = usable_positions(config)
    return None if usable == config.get("max_position_embeddings") else usable


def served_type(spec: FleetSpec, model: Path) -> str:
    """The type of a server's weights: as written, else on a CPU float32, and on a GPU that of the
    model. By itself SGLang would serve a float32 model in float16, in which values overflow.

    Raises InputError if the folder has no readable config.json.
    """
    written = str(spec.sglang.get("dtype", "auto"))
    if written != "auto":
        return written
    if not has_cuda():
        return "float32"
    own = own_type(model)
    # No product of FP8 gives float32 there.
    return "bfloat16" if own == "float32" and spec.quantization is not None else own


def own_type(model: Path) -> str:
    """The type that a model's config.json names; float32 where it names none."""
    config = read_config(model)
    return str(config.get("dtype") or config.get("torch_dtype") or "float32")


def _require_closed(passed: Mapping[str, Any]) -> None:
    wrong = [name for name in _NOT_WITH_A_KEY if passed.get(name)]
    if passed.get("tokenizer_worker_num", 1) > 1:
        wrong.append("tokenizer_worker_num")
    if wrong:
        raise InputError(
            f"servers ask for a key, which does not go with `fleet.sglang.{wrong[0]}`: leave it out"
        )


def _shows_info(given: Given) -> bool:
    return given.get("log_level") in ("info", "debug")


def _has_triton(given: Given) -> bool:
    """Return whether decoding may use it: with no backend written SGLang chooses by the GPU."""
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
    """Yield each idle option as `NAME has no effect ...`, for a server of `tp` ranks; an option
    that is off is what it is without being written."""
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
