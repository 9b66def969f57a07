"""Why an argument of SGLang's server is refused in a stage: the answer for every untested one."""

from __future__ import annotations

from fnmatch import fnmatchcase

_TOKEN_IDS = (
    "it has no effect here: requests and answers are token ids, and Tributary renders and parses"
)
_OTHER_MODEL = "the servers would sample from another model than the one that is trained and scored"
_WEIGHTS = "servers take whole weights in the model's own type from the trainer"
_REQUESTS = "every request says itself how it is sampled, and no other rule may stand beside that"
_DENSE = "all families that can be trained are dense: there are no experts"
_OTHER_LAYERS = "it is of layers that no family that can be trained has"
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
    _DENSE: (
        *("*moe*", "*expert*", "ep_*", "*eplb*", "deepep_*", "fuseep_*", "max_ep_size"),
        "enable_two_batch_overlap",
    ),
    _OTHER_LAYERS: (
        *("*mamba*", "linear_*", "*linear_replayssm*", "*swa*", "dsa_*", "*mla*", "*hisparse*"),
        *("qsa_*", "*indexer*"),
    ),
    _PLACES: ("base_gpu_id", "gpu_id_step", "nccl_port", "*_port", "use_ray", "nnodes", "pp_*"),
    _CPU: ("device",),
    "the fleet names it": ("served_model_name",),
    "ranks and servers need the same of it to meet for a broadcast: set NCCL_NVLS_ENABLE=1 where"
    " the stack starts, which is for both": ("enable_nccl_nvls",),
    "its files would hold the servers' key": ("crash_dump_folder",),
}
"""reason -> patterns of names"""
_UNTESTED = (
    "no test shows that it reaches the server and leaves the model as it is"
    " (docs/engines.md lists the arguments that are tested)"
)


def why_refused(name: str) -> str:
    """The reason as a clause. A name that nobody wrote a reason for, such as one of a newer SGLang,
    is refused as untested."""
    for reason, patterns in _REFUSED.items():
        if any(fnmatchcase(name, pattern) for pattern in patterns):
            return reason
    return _UNTESTED
