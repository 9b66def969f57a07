"""Whether a layout and the options passed through to Megatron can work. No torch, no Megatron.

`tributary check` calls `check_layout` on a laptop, the trainer on every rank: a wrong name, a
layout that does not divide the model, and combinations that would silently train wrongly all end
here, before anything starts.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engines.families.common.family import ModelShape
from engines.families.common.registry import model_shape
from engines.megatron.spec import Parallel
from engines.options import check_kind, unknown_option
from infra.errors import InputError

RESULT_NEUTRAL = frozenset(
    {
        "async_tensor_model_parallel_allreduce",
        "barrier_with_L1_time",
        "batch_p2p_comm",
        "batch_p2p_sync",
        "bias_activation_fusion",
        "bias_dropout_fusion",
        "bucket_size",
        "check_for_large_grads",
        "check_for_nan_in_grad",
        "config_logger_dir",
        "cp_comm_type",
        "cpu_offloading",
        "cpu_offloading_activations",
        "cpu_offloading_double_buffering",
        "cpu_offloading_num_layers",
        "cpu_offloading_weights",
        "cuda_graph_impl",
        "cuda_graph_retain_backward_graph",
        "cuda_graph_scope",
        "cuda_graph_use_single_mempool",
        "cuda_graph_warmup_steps",
        "deallocate_pipeline_outputs",
        "delay_wgrad_compute",
        "distribute_saved_activations",
        "enable_cuda_graph",
        "external_cuda_graph",
        "fine_grained_activation_offloading",
        "gradient_accumulation_fusion",
        "gradient_reduce_div_fusion",
        "masked_softmax_fusion",
        "min_offloaded_tensor_size",
        "num_layers_in_first_pipeline_stage",
        "num_layers_in_last_pipeline_stage",
        "num_microbatches_with_partial_activation_checkpoints",
        "offload_modules",
        "optimizer_cpu_offload",
        "optimizer_offload_fraction",
        "overlap_cpu_optimizer_d2h_h2d",
        "overlap_grad_reduce",
        "overlap_p2p_comm",
        "overlap_p2p_comm_warmup_flush",
        "pad_buckets_for_high_nccl_busbw",
        "pin_cpu_grads",
        "pin_cpu_params",
        "pipeline_model_parallel_comm_backend",
        "pipeline_model_parallel_layout",
        "recompute_granularity",
        "recompute_method",
        "recompute_modules",
        "recompute_num_layers",
        "store_param_remainders",
        "tp_comm_atomic_ag",
        "tp_comm_atomic_rs",
        "tp_comm_bootstrap_backend",
        "tp_comm_bulk_dgrad",
        "tp_comm_bulk_wgrad",
        "tp_comm_overlap",
        "tp_comm_overlap_ag",
        "tp_comm_overlap_disable_fc1",
        "tp_comm_overlap_disable_qkv",
        "tp_comm_overlap_rs",
        "tp_comm_overlap_rs_dgrad",
        "tp_comm_split_ag",
        "tp_comm_split_rs",
        "use_precision_aware_optimizer",
        "use_ring_exchange_p2p",
        "use_torch_optimizer_for_cpu_offload",
    }
)
"""Options that change speed and memory but not results, beyond floating-point order: they stay out
of a stage's digest."""

_FROM_MODEL = frozenset(
    {
        "add_bias_linear",
        "add_qkv_bias",
        "ffn_hidden_size",
        "gated_linear_unit",
        "hidden_size",
        "kv_channels",
        "layernorm_epsilon",
        "multi_latent_attention",
        "normalization",
        "num_attention_heads",
        "num_layers",
        "num_moe_experts",
        "num_query_groups",
        "qk_layernorm",
    }
)
_FROM_RESOURCES = {
    "tensor_model_parallel_size": "tp",
    "pipeline_model_parallel_size": "pp",
    "context_parallel_size": "cp",
    "expert_model_parallel_size": "ep",
}
_FROM_OPTIMIZER = {
    "adam_beta1": "beta1",
    "adam_beta2": "beta2",
    "adam_eps": "eps",
    "clip_grad": "clip_grad",
    "lr": "lr",
    "min_lr": "min_lr_ratio",
    "weight_decay": "weight_decay",
}
_FROM_TRAINER = frozenset(
    {
        "bf16",
        "calculate_per_token_loss",
        "fp16",
        "moe_token_dispatcher_type",
        "optimizer",
        "params_dtype",
        "perform_initialization",
        "pipeline_dtype",
        "sequence_parallel",
        "use_cpu_initialization",
        "use_distributed_optimizer",
        "variable_seq_lengths",
    }
)
_IGNORED_BY_OUR_LAYERS = frozenset(
    {
        "apply_query_key_layer_scaling",
        "apply_rope_fusion",
        "attention_dropout",
        "cross_entropy_fusion_impl",
        "cross_entropy_loss_fusion",
        "defer_embedding_wgrad_compute",
        "fused_single_qkv_rope",
        "layernorm_zero_centered_gamma",
        "memory_efficient_layer_norm",
        "no_rope_freq",
        "persist_layer_norm",
        "qk_clip",
        "rotary_interleaved",
        "softmax_type",
        "wgrad_deferral_limit",
        "window_attn_skip_freq",
        "window_size",
    }
)
_NEEDS_OTHERS = frozenset(
    {
        "apply_wd_to_qk_layernorm",
        "barrier_with_L1_time",
        "decoupled_lr",
        "decoupled_min_lr",
        "hysteresis",
        "initial_loss_scale",
        "log_num_zeros_in_grad",
        "loss_scale",
        "loss_scale_window",
        "min_loss_scale",
        "sgd_momentum",
    }
)
_WEIGHTS_LATE = "weights would be whole in the next forward pass only, and are published before it"
_FSDP = "it is Megatron's FSDP, which shards the weights that a rank publishes and puts to sleep"
_FP8_WEIGHTS = "it keeps the weights in fp8, which servers do not take from the trainer"
_CONTRADICTS = {
    "align_param_gather": _WEIGHTS_LATE,
    "average_in_collective": "gradients are summed, and divided once by the number of tokens",
    "data_parallel_sharding_strategy": _FSDP,
    "disable_symmetric_registration": _FSDP,
    "fp8_param_gather": _FP8_WEIGHTS,
    "fsdp_double_buffer": _FSDP,
    "fsdp_manual_registration": _FSDP,
    "keep_fp8_transpose_cache": _FSDP,
    "nccl_ub": "it keeps memory registered that sleep has to give back",
    "num_distributed_optimizer_instances": "all data-parallel ranks share one optimizer state",
    "outer_dp_sharding_strategy": _FSDP,
    "overlap_param_gather": _WEIGHTS_LATE,
    "overlap_param_gather_with_optimizer_step": _WEIGHTS_LATE,
    "preserve_fp32_weights": _FSDP,
    "reuse_grad_buf_for_mxfp8_param_ag": _FP8_WEIGHTS,
    "suggested_communication_unit_size": _FSDP,
    "use_custom_fsdp": _FSDP,
    "use_megatron_fsdp": _FSDP,
}
"""options that what we rely on forbids, and why"""
_MUON = "muon_"


def check_layout(
    hf_config: Mapping[str, Any], parallel: Parallel, megatron_options: Mapping[str, Any]
) -> None:
    """Raise InputError if the model (its config.json) cannot train in this layout."""
    shape = model_shape(hf_config)
    _check_silent_faults(parallel, megatron_options)
    for name, value in megatron_options.items():
        _check_option(name, value)
    _check_sizes(shape, parallel, megatron_options)


def _check_silent_faults(parallel: Parallel, options: Mapping[str, Any]) -> None:
    """What Megatron-core 0.16 accepts and then computes wrong gradients with, or fails at."""
    if options.get("multi_latent_attention") and parallel.tp > 1:
        raise InputError(
            "trainer.megatron: multi_latent_attention with tp > 1 gives wrong gradients without"
            " Transformer Engine; use tp: 1"
        )
    expert_tp = options.get("expert_tensor_parallel_size")
    if expert_tp is not None and expert_tp != parallel.tp and parallel.ep == 1:
        raise InputError(
            f"trainer.megatron: expert_tensor_parallel_size {expert_tp} with tp {parallel.tp} and"
            " ep 1 gives wrong expert gradients; make it equal to tp, or ep larger than 1"
        )
    if "layernorm" in (options.get("recompute_modules") or []):
        raise InputError(
            "trainer.megatron: recompute_modules: layernorm needs Transformer Engine, which is not"
            " in our locks; leave it out, or set recompute_granularity: full"
        )
    if options.get("virtual_pipeline_model_parallel_size"):
        raise InputError(
            "trainer.megatron: virtual_pipeline_model_parallel_size is not supported: with batched"
            " point-to-point communication its activations are corrupted; leave it out"
        )

    if options.get("optimizer_cpu_offload") and not options.get("use_precision_aware_optimizer"):
        raise InputError(
            "trainer.megatron: optimizer_cpu_offload needs use_precision_aware_optimizer: true;"
            " the state stays in fp32 all the same"
        )
    if options.get("optimizer_offload_fraction") and not options.get("optimizer_cpu_offload"):
        raise InputError(
            "trainer.megatron: optimizer_offload_fraction needs optimizer_cpu_offload: true"
        )


def _check_option(name: str, value: Any) -> None:
    kinds = _table().get(name)
    where = f"trainer.megatron.{name}"
    if kinds is None:
        of_what = (
            "a field of Megatron-core's TransformerConfig, OptimizerConfig or"
            " DistributedDataParallelConfig"
        )
        raise unknown_option(where, name, _table(), of_what)
    if name in _CONTRADICTS:
        raise InputError(f"{where} cannot be used: {_CONTRADICTS[name]}; leave it out")
    if name in _FROM_OPTIMIZER:
        raise InputError(f"{where} is set by the recipe: optimizer.{_FROM_OPTIMIZER[name]}")
    if name in _FROM_RESOURCES:
        raise InputError(f"{where} is set by resources: trainer.{_FROM_RESOURCES[name]}")
    if name in _FROM_MODEL:
        raise InputError(f"{where} comes from the model folder's config.json; leave it out")
    if name in _FROM_TRAINER:
        raise InputError(f"{where} is set by the trainer itself; leave it out")
    if name in _NEEDS_OTHERS or name.startswith(_MUON):
        raise InputError(
            f"{where} has no effect on AdamW in fp32 or bf16, which the trainer uses; leave it out"
        )
    if name in _IGNORED_BY_OUR_LAYERS:
        raise InputError(
            f"{where} has no effect on the trainer's own attention, norms and output layer;"
            " leave it out"
        )
    if not set(kinds) - {"null"}:
        raise InputError(f"{where} takes a Python object, which a recipe cannot express")
    check_kind(where, value, kinds)


def _check_sizes(shape: ModelShape, parallel: Parallel, options: Mapping[str, Any]) -> None:
    split_by_tp = {
        "attention heads": shape.heads,
        "KV groups": shape.kv_groups,
        "feed-forward size": shape.ffn,
        "vocabulary": shape.vocab,
    }
    for what, size in split_by_tp.items():
        if size % parallel.tp:
            raise InputError(f"tp {parallel.tp} does not divide the model's {what} ({size})")
    is_uneven = any(
        options.get(name) is not None
        for name in (
            "num_layers_in_first_pipeline_stage",
            "num_layers_in_last_pipeline_stage",
            "pipeline_model_parallel_layout",
        )
    )
    if shape.num_layers % parallel.pp and not is_uneven:
        raise InputError(
            f"pp {parallel.pp} does not divide the model's layers ({shape.num_layers}); change pp,"
            " or set num_layers_in_first_pipeline_stage in trainer.megatron"
        )
    if parallel.ep > 1:
        raise InputError(f"ep {parallel.ep} needs a mixture-of-experts model; this one is dense")


@functools.cache
def _table() -> dict[str, list[str]]:
    return json.loads(Path(__file__).with_name("options.json").read_text())
