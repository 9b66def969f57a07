"""The options of SGLang's server: which pass through, which are refused in a stage, and why."""

from __future__ import annotations

import functools
import json
import math
import types
import typing
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, cast

from infra.config import check_kind, unknown_option
from infra.errors import InputError

_TOKEN_IDS = (
    "it has no effect here: requests and answers are token ids, and Tributary renders and parses"
)
_OTHER_MODEL = "the servers would sample from another model than the one that is trained and scored"
_WEIGHTS = "servers take whole weights in the model's own type from the trainer"
_REQUESTS = "every request says itself how it is sampled, and no other rule may stand beside that"
_EXPERTS = "no test shows experts that a server divides in another way than by its tp"
_REPLAY = "algorithm.routing_replay: engine asks servers which experts they chose"
_OTHER_LAYERS = "it is of layers that no family that can be trained has"
_WINDOWS = "the model's class decides how the cache of layers with a sliding window is held"
_PLACES = "the fleet chooses ports, devices and hosts"
_CPU = "the fleet chooses the device by what the host has"
_REFUSED: dict[str, tuple[str, ...]] = {
    _TOKEN_IDS: (
        *("*chat_template*", "completion_template", "*tokenizer*", "tool_*", "reasoning_parser"),
        *("enable_strict_thinking", "strip_thinking_cache", "*constrained_json*", "grammar_*"),
        *("stream_response_*", "incremental_streaming_output", "enable_cache_report"),
        *("enable_response_store", "file_storage_path", "asr_*", "mm_*", "*_mm_*", "*multimodal*"),
        *("*image_processor*", "encoder_*", "language_*", "limit_mm*", "allowed_media_domains"),
        *("*media_url*", "allow_auto_truncate", "return_input_ids", "return_output_ids"),
        *("detokenizer_*", "sidecar*", "warmups", "completion_*", "default_chat*"),
    ),
    _OTHER_MODEL: (
        *("json_model_override_args", "load_format", "model_config_parser", "model_impl"),
        *("revision", "decrypted_*", "custom_weight_loader", "forward_hooks", "*lora*"),
        *("model_checksum", "delete_ckpt_after_loading", "remote_instance_*", "modelexpress*"),
        *("weight_cache_*", "startup_weight_load_mode", "checkpoint_engine_*", "ple_*"),
    ),
    _WEIGHTS: (
        *("*quantization*", "quantize_and_serve", "modelopt_*", "rl_quant_profile", "torchao*"),
        *("kt_*", "*fp4_gemm*", "*fp8_gemm*", "cpu_offload_gb", "offload_*"),
        "enable_weights_cpu_backup",
    ),
    _REQUESTS: (
        *("sampling_defaults", "preferred_sampling_params", "watermark_*", "enable_watermark"),
        *("random_seed", "enable_custom_logit_processor", "mlx_*", "sampling_mask_*"),
    ),
    "its drafts would not get the weights that the trainer publishes": (
        *("*speculative*", "decoupled_spec_*", "spec_*", "enable_multi_layer_eagle"),
    ),
    _REPLAY: ("*return_routed_experts*",),
    _EXPERTS: (
        *("*moe*", "*expert*", "ep_*", "*eplb*", "deepep_*", "fuseep_*", "max_ep_size"),
        "enable_two_batch_overlap",
    ),
    _OTHER_LAYERS: (
        *("*mamba*", "linear_*", "*linear_replayssm*", "dsa_*", "*mla*", "*hisparse*"),
        *("qsa_*", "*indexer*"),
    ),
    _WINDOWS: ("*swa*",),
    _PLACES: ("base_gpu_id", "gpu_id_step", "nccl_port", "*_port", "use_ray", "nnodes", "pp_*"),
    _CPU: ("device",),
    "the fleet names it": ("served_model_name",),
    "ranks and servers need the same of it to meet for a broadcast: set NCCL_NVLS_ENABLE=1 where"
    " the stack starts, which is for both": ("enable_nccl_nvls",),
    "its files would hold the servers' key": ("crash_dump_folder",),
    "nothing in the pinned SGLang uses it": (
        *("num_continuous_decode_steps", "show_time_cost", "triton_attention_reduce_in_fp32"),
    ),
}
"""reason -> patterns of names"""
_UNTESTED = (
    "no test shows that it reaches the server and leaves the model as it is"
    " (docs/engines.md lists the arguments that are tested)"
)
RESULT_NEUTRAL = frozenset(
    {
        "chunked_prefill_size",
        "cuda_graph_bs_decode",
        "cuda_graph_max_bs_decode",
        "decode_log_interval",
        "disable_cuda_graph",
        "disable_cuda_graph_padding",
        "disable_custom_all_reduce",
        "disable_overlap_schedule",
        "disable_radix_cache",
        "dist_timeout",
        "enable_memory_saver",
        "enable_metrics",
        "enable_p2p_check",
        "enable_request_time_stats_logging",
        "enable_trace",
        "gc_threshold",
        "log_level",
        "log_level_http",
        "log_requests",
        "log_requests_level",
        "log_requests_target",
        "max_prefill_tokens",
        "max_queued_requests",
        "max_running_requests",
        "mem_fraction_static",
        "model_loader_extra_config",
        "numa_node",
        "otlp_traces_endpoint",
        "page_size",
        "prefill_max_requests",
        "radix_eviction_policy",
        "schedule_conservativeness",
        "schedule_policy",
        "sleep_on_idle",
        "soft_watchdog_timeout",
        "stream_interval",
        "torch_compile_max_bs",
        "watchdog_timeout",
        "weight_loader_disable_mmap",
        "weight_loader_prefetch_checkpoints",
    }
)
"""Options that change speed, memory, logs or places but not what is generated, beyond
floating-point order: they stay out of a stage's digest."""
_NUMERIC = frozenset(
    {
        "attention_backend",
        "attn_cp_size",
        "attn_dp_size",
        "decode_attention_backend",
        "dtype",
        "enable_deterministic_inference",
        "enable_fp32_lm_head",
        "enable_mixed_chunk",
        "enable_tf32_matmul",
        "enable_torch_compile",
        "kv_cache_dtype",
        "prefill_attention_backend",
        "rl_on_policy_target",
        "sampling_backend",
        "triton_attention_num_kv_splits",
    }
)
"""Options by which the same model is computed with other kernels or in another type."""
ALLOWED = RESULT_NEUTRAL | _NUMERIC
"""Options that a stage passes on; a test shows that each reaches SGLang and is read there. All
others are refused, a newer SGLang's too."""
_OF_ROLES = frozenset(
    {
        "ep_size",
        "fp4_gemm_runner_backend",
        "fp8_gemm_runner_backend",
        "moe_a2a_backend",
        "moe_dense_tp_size",
        "moe_runner_backend",
        "quantization",
        "trust_remote_code",
    }
)
"""More options of a model that only answers rewards: nobody publishes weights to it, and it may be
of any family."""
_OF_HOSTS = (
    "a stage's server is on one host; serve on several with `tributary fleet up`"
    " (hosts_per_server), and name the addresses in fleet.external"
)
_SET_BY_US = {
    "admin_api_key": "the key is the stack's; see docs/security.md",
    "api_key": "the key is the stack's; see docs/security.md",
    "context_length": "write it as `fleet.context_length`",
    "dp_size": (
        "SGLang refuses new weights from a trainer where a server has replicas; raise resources:"
        " servers for replicas, or pass attn_dp_size to share the attention within tp_per_server"
    ),
    "disaggregation_mode": (
        "a stage's servers answer whole requests; serve apart with `tributary fleet up`"
        " (disaggregated), and name the addresses in fleet.external"
    ),
    "dist_init_addr": _OF_HOSTS,
    "enable_dp_attention": "SGLang calls it attn_dp_size now; pass that",
    "is_embedding": "the reward `reward-model` sets it for its own servers",
    "host": "set TRIBUTARY_HOST for `tributary up`",
    "max_total_tokens": "write it as `fleet.max_total_tokens`",
    "model_path": "it comes from the stage's input",
    "nnodes": _OF_HOSTS,
    "node_rank": _OF_HOSTS,
    "port": "the fleet chooses it",
    "skip_server_warmup": "the fleet tests a server with its own request",
    "skip_tokenizer_init": "requests and answers are token ids",
    "tp_size": "it comes from resources: tp_per_server",
    "weight_version": "the fleet sets it",
}
_BOUNDS: Mapping[str, tuple[float, float]] = {
    "chunked_prefill_size": (-1, math.inf),  # -1: never in parts
    "gc_threshold": (0, math.inf),
    "log_requests_level": (0, 3),
    "mem_fraction_static": (0.01, 0.99),
    "numa_node": (0, math.inf),
    "schedule_conservativeness": (0, math.inf),
    "soft_watchdog_timeout": (0.001, math.inf),
    "watchdog_timeout": (0.001, math.inf),
}
"""least and largest number; of all others 1 is the least"""
_LEVELS = ("debug", "info", "warning", "error", "critical")
_OF_TEXTS = ("log_requests_target",)
"""lists of texts; all others are of whole numbers"""
_KINDS: dict[Any, str] = {
    bool: "bool",
    int: "int",
    float: "float",
    str: "str",
    type(None): "null",
}


def why_refused(name: str) -> str:
    """The reason as a clause. A name that nobody wrote a reason for, such as one of a newer SGLang,
    is refused as untested."""
    for reason, patterns in _REFUSED.items():
        if any(fnmatchcase(name, pattern) for pattern in patterns):
            return reason
    return _UNTESTED


@functools.cache
def table() -> dict[str, list[str]]:
    """Kinds of value that each field of the pinned ServerArgs takes; [] when we cannot tell."""
    return json.loads((Path(__file__).parent / "options.json").read_text())


def check_options(options: Mapping[str, Any], *, is_role: bool = False) -> None:
    """Raise InputError at the first option that a stage does not pass on to its servers.

    `is_role`: of a model that only answers rewards.
    """
    check_known(options)
    for name in options:
        if name not in ALLOWED and not (is_role and name in _OF_ROLES):
            raise InputError(
                f"fleet.sglang.{name} cannot be used: {why_refused(name)}; leave it out"
            )
        _check_numbers(f"fleet.sglang.{name}", name, options[name])
        _check_text(f"fleet.sglang.{name}", name, options[name])


def _check_numbers(where: str, name: str, value: Any) -> None:
    """Raise InputError for a number, or one of a list, that no server can work with: SGLang says so
    late, when a stage starts its servers, or not at all."""
    listed = cast("list[Any]", value) if isinstance(value, list) else None
    kind, wanted = (str, "texts") if name in _OF_TEXTS else (int, "whole numbers")
    if listed is not None and (not listed or any(type(each) is not kind for each in listed)):
        raise InputError(f"{where} is {value!r}; write a list of {wanted}, or leave it out")
    low, high = _BOUNDS.get(name, (1, math.inf))
    numbers: list[Any] = [value] if listed is None else listed
    for each in numbers:
        is_number = isinstance(each, int | float) and not isinstance(each, bool)
        if is_number and not (low <= each <= high and math.isfinite(each)):
            allowed = f"from {low} to {high}" if high < math.inf else f"of {low} or more"
            raise InputError(f"{where} is {value!r}; write a number {allowed}, or leave it out")


def _check_text(where: str, name: str, value: Any) -> None:
    """Raise InputError for a text at which a server ends when it starts."""
    if not isinstance(value, str):
        return
    if name in ("log_level", "log_level_http") and value not in _LEVELS:
        raise InputError(
            f"{where} is {value!r}; write one of {', '.join(_LEVELS)}, or leave it out"
        )
    if name == "model_loader_extra_config" and not _is_object(value):
        raise InputError(
            f"{where} is {value!r}; write a JSON object as text, e.g."
            " '{\"enable_multithread_load\": true}', or leave it out"
        )
    if not value.strip():
        raise InputError(f"{where} is empty; write a text, or leave it out")


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def check_known(options: Mapping[str, Any]) -> None:
    """Raise InputError at the first option that SGLang does not know or that is ours to set."""
    for name, value in options.items():
        where = f"fleet.sglang.{name}"
        kinds = table().get(name)
        if kinds is None:
            of_what = "a server argument of the pinned SGLang"
            raise unknown_option(where, name, table(), of_what)
        if name in _SET_BY_US:
            raise InputError(f"{where} cannot be passed through: {_SET_BY_US[name]}")
        if kinds:
            check_kind(where, value, kinds)


def check_parallel(options: Mapping[str, Any], tp: int) -> None:
    """Raise InputError if a server of `tp` ranks cannot share its attention as the options say."""
    groups = options.get("attn_dp_size", 1) * (options.get("attn_cp_size") or 1)
    if tp % groups:
        raise InputError(
            f"fleet.sglang: attn_dp_size x attn_cp_size is {groups}, which does not divide"
            f" resources: tp_per_server ({tp})"
        )


def describe(annotations: Mapping[str, Any]) -> dict[str, list[str]]:
    """The table of a class's resolved annotations, e.g. {"port": int} -> {"port": ["int"]}."""
    return {name: sorted(_kinds(annotation)) for name, annotation in sorted(annotations.items())}


def _kinds(annotation: Any) -> set[str]:
    """Kinds that an annotation allows; empty if one of its parts is no plain data."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        kind, *notes = typing.get_args(annotation)
        return _chosen(_kinds(kind), notes)
    if origin is typing.Literal:
        values = typing.get_args(annotation)
        return {f"={v}" if isinstance(v, str) else _KINDS[type(v)] for v in values}
    if origin in (typing.Union, types.UnionType):
        parts = [_kinds(part) for part in typing.get_args(annotation)]
        return set[str]().union(*parts) if all(parts) else set()
    container = {list: "list", tuple: "list", set: "list", dict: "dict"}.get(origin or annotation)
    kind = container or _KINDS.get(annotation)
    return set() if kind is None else {kind}


def _chosen(kinds: set[str], notes: Sequence[Any]) -> set[str]:
    """The texts that SGLang lets an option choose from, in place of any text."""
    found = (getattr(note, "choices", None) for note in notes)
    choices: list[Any] = next(filter(None, found), [])
    if "str" not in kinds or not choices or not all(isinstance(each, str) for each in choices):
        return kinds
    return kinds - {"str"} | {f"={each}" for each in choices}
