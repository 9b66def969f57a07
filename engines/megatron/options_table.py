"""Makes options.json, the table of what a recipe may pass to Megatron-core, from the installed one;
and says why an option is refused: every one is that is not proven here.

Run `python -m engines.megatron.options_table` after changing Megatron's version; a test compares
the committed table with the real class.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeVar

from infra.errors import InputError

TABLE = Path(__file__).with_name("options.json")

_JSON_KINDS = {
    bool: "bool",
    int: "int",
    float: "float",
    str: "str",
    list: "list",
    tuple: "list",
    dict: "dict",
    type(None): "null",
}
_FROM_RESOURCES = {
    "tensor_model_parallel_size": "tp",
    "pipeline_model_parallel_size": "pp",
    "context_parallel_size": "cp",
    "expert_model_parallel_size": "ep",
    "expert_tensor_parallel_size": "etp",
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
_WEIGHTS_LATE = "weights would be whole in the next forward pass only, and are published before it"
_FSDP = "it is Megatron's FSDP, which shards the weights that a rank publishes and puts to sleep"
_MODEL = "the model folder's config.json decides it, and servers and exports know nothing of it"
_FROM_MODEL = "it comes from the model folder's config.json"
_TRAINER = "it is set by the trainer itself"
_LAYERS = "it has no effect on the trainer's own attention, norms, rotary angles and output layer"
_EXPERTS = (
    "config.json says how tokens are routed to experts, and no test shows that this option leaves"
    " the model as it is"
)
_REPLAY = "algorithm.routing_replay says which experts a token has in updates"
_ADAMW = "it has no effect on AdamW in fp32 or bf16, which the trainer uses"
_NEEDS_TE = "it needs Transformer Engine, which is in none of our locks, and does nothing without"
_NEEDS_APEX = "it needs apex's kernels, which are in none of our locks"
_OTHER_MODEL = "it is of layers that no supported family has"
_LOADED = "weights are loaded from the model folder, so nothing is initialised by it"
_INFERENCE = "it is of Megatron's own inference, and SGLang generates here"
_REFUSED: dict[str, tuple[str, ...]] = {
    _MODEL: (
        *("activation_func_clamp_value", "apply_residual_connection_post_layernorm"),
        *("attention_output_gate", "experimental_attention_variant", "fp32_residual_connection"),
        *("glu_linear_offset", "mrope_section", "mtp_*", "qk_clip*", "qk_l2_norm"),
        *("heterogeneous_block_specs", "is_hybrid_model", "linear_attention_freq", "softmax_scale"),
        "log_max_attention_logit",
    ),
    _FROM_MODEL: (
        *("activation_func", "add_bias_linear", "add_qkv_bias", "ffn_hidden_size"),
        *("gated_linear_unit", "hidden_size", "kv_channels", "layernorm_epsilon"),
        *("multi_latent_attention", "normalization", "num_attention_heads", "num_layers"),
        *("num_moe_experts", "num_query_groups", "qk_layernorm"),
    ),
    "it is dropout, which would also change the logprobs that RL compares; the trainer has none": (
        "hidden_dropout",
    ),
    _TRAINER: (
        *("bf16", "calculate_per_token_loss", "decoupled_weight_decay", "fp16"),
        *("optimizer", "params_dtype", "perform_initialization", "pipeline_dtype"),
        *("sequence_parallel", "use_cpu_initialization", "use_distributed_optimizer"),
        *(
            "variable_seq_lengths",
            "autocast_dtype",
            "enable_autocast",
            "finalize_model_grads_func",
            "grad_scale_func",
            "grad_sync_func",
            "no_sync_func",
            "param_sync_func",
            "deterministic_mode",
        ),
        *("batch_invariant_mode", "moe_token_dispatcher_type", "test_mode", "timers"),
    ),
    _LAYERS: (
        *("apply_query_key_layer_scaling", "apply_rope_fusion", "attention_backend"),
        *("attention_dropout", "attention_softmax_in_fp32", "bias_dropout_fusion", "cp_comm_type"),
        *("cross_entropy_*", "defer_embedding_wgrad_compute", "flash_decode"),
        *("fused_single_qkv_rope", "hierarchical_context_parallel_sizes"),
        *("hybrid_context_parallel", "layernorm_zero_centered_gamma", "masked_softmax_fusion"),
        *("max_seqlen_per_dp_cp_rank", "memory_efficient_layer_norm", "no_rope_freq"),
        *("persist_layer_norm", "rotary_interleaved", "softmax_type", "wgrad_deferral_limit"),
        *("window_attn_skip_freq", "window_size"),
    ),
    _REPLAY: ("moe_*replay*",),
    _EXPERTS: (
        *("moe_*", "expert_*", "ep_*", "overlap_moe_expert_parallel_comm"),
        "use_fused_weighted_squared_relu",
    ),
    _ADAMW: (
        *("apply_wd_to_qk_layernorm", "barrier_with_L1_time", "decoupled_lr", "decoupled_min_lr"),
        *("hysteresis", "initial_loss_scale", "log_num_zeros_in_grad", "loss_scale"),
        *("loss_scale_window", "min_loss_scale", "muon_*", "sgd_momentum"),
    ),
    _WEIGHTS_LATE: ("align_param_gather", "overlap_param_gather*"),
    _FSDP: (
        *("data_parallel_sharding_strategy", "disable_symmetric_registration"),
        *("fsdp_*", "init_model_with_meta_device", "keep_fp8_transpose_cache"),
        *("outer_dp_sharding_strategy", "preserve_fp32_weights"),
        *("suggested_communication_unit_size", "use_custom_fsdp", "use_megatron_fsdp"),
    ),
    "it keeps the weights in fp8 or fp4, which servers do not take from the trainer": (
        *("fp4_param", "fp8_param", "fp8_param_gather", "reuse_grad_buf_for_mxfp8_param_ag"),
    ),
    "gradients are summed, and divided once by the number of tokens": (
        *("average_in_collective", "gradient_reduce_div_fusion"),
    ),
    "it keeps memory registered that sleep has to give back": ("nccl_ub",),
    "all data-parallel ranks share one optimizer state": ("num_distributed_optimizer_instances",),
    "loss and gradient norm are checked before every update in any case": (
        *("check_for_large_grads", "check_for_nan_in_grad"),
    ),
    _NEEDS_TE: (
        *("activation_func_fp8_input_store", "async_tensor_model_parallel_allreduce"),
        *("cpu_offloading*", "delay_wgrad_compute", "disable_parameter_transpose_cache"),
        *("exp_avg_dtype", "exp_avg_sq_dtype", "fine_grained_activation_offloading"),
        *("first_last_layers_bf16", "fp4*", "fp8*", "kitchen_*", "main_grads_dtype"),
        *("main_params_dtype", "min_offloaded_tensor_size", "num_layers_at_*", "offload_modules"),
        *("quant_recipe", "store_param_remainders", "symmetric_ar_type", "tp_comm_*"),
        *("tp_only_amax_red", "transformer_impl", "use_kitchen*", "use_te_*"),
    ),
    _NEEDS_APEX: ("gradient_accumulation_fusion",),
    _OTHER_MODEL: ("dsa_*", "linear_*", "mamba_*", "use_mamba_mem_eff_path"),
    _LOADED: ("embedding_init_method*", "init_method*", "output_layer_init_method"),
    _INFERENCE: ("inference_*", "mlp_chunks_for_prefill", "use_inference_optimized_layers"),
    "micro-batches have as many tokens as their sequences, and a captured graph one size": (
        *("cuda_graph_*", "enable_cuda_graph", "external_cuda_graph"),
    ),
    "with batched point-to-point communication its activations are corrupted": (
        "virtual_pipeline_model_parallel_size",
    ),
    "it belongs to the interleaved pipeline, which is not supported": (
        *("microbatch_group_size_per_vp_stage", "overlap_p2p_comm*"),
    ),
    "write num_layers_in_first_pipeline_stage or num_layers_in_last_pipeline_stage": (
        *("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"),
        "pipeline_model_parallel_layout",
    ),
    "sequence parallelism, which the trainer always uses with tp, does not go with it": (
        "distribute_saved_activations",
    ),
    "it has no effect in the pinned Megatron-core": ("use_torch_optimizer_for_cpu_offload",),
}
"""reason -> names, or patterns of them"""
_UNPROVEN = (
    "no test shows that it changes what the trainer does and leaves the model as it is"
    " (docs/engines.md lists the options that are tested)"
)


def why_refused(name: str) -> str:
    """The reason as a clause, with what to do. Example: "it is set by the recipe: ...".

    A name that nobody wrote a reason for, such as one of a newer Megatron-core, is refused as
    unproven.
    """
    if name in _FROM_OPTIMIZER:
        return f"it is set by the recipe: optimizer.{_FROM_OPTIMIZER[name]}"
    if name in _FROM_RESOURCES:
        return f"it is set by resources: trainer.{_FROM_RESOURCES[name]}"
    reasons = (reason for reason, names in _REFUSED.items() if _matches(name, names))
    return next(reasons, _UNPROVEN)


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def named() -> Iterator[str]:
    """Yield every name and pattern that has a reason."""
    yield from (*_FROM_OPTIMIZER, *_FROM_RESOURCES)
    for names in _REFUSED.values():
        yield from names


def describe_options() -> dict[str, list[str]]:
    """Describe each public field with the JSON kinds it takes, e.g. {"recompute_num_layers":
    ["int", "null"]}; the values of a Literal are written `=value`; no kind: not a JSON value. A
    name that several classes have is one option for all of them."""
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig
    from megatron.core.transformer.transformer_config import TransformerConfig

    kinds: dict[str, set[str]] = {}
    for config in (TransformerConfig, OptimizerConfig, DistributedDataParallelConfig):
        hints = typing.get_type_hints(config)
        for field in dataclasses.fields(config):
            if field.init and not field.name.startswith("_"):
                kinds.setdefault(field.name, set()).update(_kinds(hints[field.name]))
                if field.default is None:  # some say `int = None`
                    kinds[field.name].add("null")
    return {name: sorted(found) for name, found in sorted(kinds.items())}


def _kinds(hint: Any) -> set[str]:
    import torch

    if hint is torch.dtype:
        return {"=fp32", "=bf16", "=fp16", "=fp8"}  # the names of Megatron-LM's command line
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return {"null" if value is None else f"={value}" for value in typing.get_args(hint)}
    if origin in (typing.Union, types.UnionType):
        return set[str]().union(*(_kinds(part) for part in typing.get_args(hint)))
    kind = _JSON_KINDS.get(origin or hint)
    return {kind} if kind else set()


T = TypeVar("T")


def filled(kind: type[T], options: Mapping[str, Any], **ours: Any) -> T:
    """Return a `kind` with our fields, and those of the options that it has. InputError if it
    refuses.
    """
    fields: Any = dataclasses.fields(kind)  # pyrefly: ignore[bad-argument-type]
    names = {field.name for field in fields}
    given = {name: value for name, value in options.items() if name in names}
    try:
        return kind(**(ours | given))
    except (ValueError, AssertionError, TypeError, RuntimeError) as error:
        raise InputError(
            f"Megatron-core refuses trainer.megatron {dict(options)}: {error}"
        ) from error


if __name__ == "__main__":
    TABLE.write_text(json.dumps(describe_options(), indent=1) + "\n")
