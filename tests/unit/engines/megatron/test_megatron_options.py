"""Layouts and options that cannot work are refused before anything starts."""

from __future__ import annotations

import json
import subprocess
import sys
from fnmatch import fnmatchcase
from typing import Any

import pytest

from engines.megatron.options import ALLOWED, check_effects, check_layout, check_lora
from engines.megatron.options_table import TABLE, describe_options, named
from engines.megatron.spec import Lora, Parallel, TrainerSettings
from infra.errors import InputError

pytestmark = pytest.mark.unit

QWEN3: dict[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 512,
}

MIXTURE: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 8,
    "num_experts": 4,
}


def refusal(
    parallel: Parallel | None = None, options: dict[str, Any] | None = None, **config: Any
) -> str:
    with pytest.raises(InputError) as caught:
        check_layout(QWEN3 | config, parallel or Parallel(), options or {})
    return str(caught.value)


def test_good_layouts_and_options_pass() -> None:
    full = {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 1}
    check_layout(QWEN3, Parallel(tp=2, pp=4, cp=2, dp=3), full)
    for first, last, pp in ((1, None, 2), (None, 3, 2), (1, 3, 2), (2, 1, 3), (2, None, 3)):
        stages = {
            "num_layers_in_first_pipeline_stage": first,
            "num_layers_in_last_pipeline_stage": last,
        }
        check_layout(QWEN3, Parallel(pp=pp), stages)


def test_options_of_the_optimizer_and_of_data_parallelism_pass() -> None:
    state = {"use_precision_aware_optimizer": True, "pin_cpu_grads": False}
    offload = {"optimizer_cpu_offload": True, "optimizer_offload_fraction": 1}
    overlap = {"overlap_grad_reduce": True, "bucket_size": 1000, "grad_reduce_in_fp32": False}
    check_layout(QWEN3, Parallel(dp=2), state | offload | overlap, "bf16")


OFFLOAD = {"use_precision_aware_optimizer": True, "optimizer_cpu_offload": True}


@pytest.mark.parametrize(
    ("options", "idle", "working"),
    [
        ({"overlap_grad_reduce": True}, Parallel(tp=2, pp=2), Parallel(cp=2)),
        ({"pad_buckets_for_high_nccl_busbw": True}, Parallel(pp=2), Parallel(dp=2)),
        ({"deallocate_pipeline_outputs": True}, Parallel(dp=2), Parallel(pp=2)),
        (OFFLOAD, Parallel(), None),
        (OFFLOAD | {"optimizer_offload_fraction": 0.0}, Parallel(), None),
    ],
)
def test_an_option_that_does_nothing_in_its_layout_is_refused(
    options: dict[str, Any], idle: Parallel, working: Parallel | None
) -> None:
    check_layout(QWEN3, idle, options)
    with pytest.raises(InputError) as caught:
        check_effects(idle, options)
    assert any(f"trainer.megatron.{name} " in str(caught.value) for name in options)
    if working is not None:
        check_effects(working, options)
    check_effects(idle, dict.fromkeys(options, False))


@pytest.mark.parametrize(
    ("lora", "config", "said"),
    [
        (
            {"targets": ["q_proj", "qkv_proj"]},
            {},
            "no qkv_proj that can be adapted; allowed are q_proj, k_proj",
        ),
        ({"rank": 129}, {}, "trainer.lora.rank is 129; write 128 or less"),
        (
            {"targets": ["gate"]},
            MIXTURE,
            "no gate that can be adapted; allowed are q_proj, k_proj, v_proj, o_proj, gate_proj",
        ),
        ({"targets": ["q_proj", "up_proj"]}, MIXTURE, "all of down_proj, gate_proj, up_proj"),
        ({}, {"megatron": {"moe_router_bias_update_rate": 0.001}}, "would change routers"),
        ({}, {"has_value_head": True}, "critic.trainer"),
    ],
)
def test_adapters_that_cannot_work_are_refused(
    lora: dict[str, Any], config: dict[str, Any], said: str
) -> None:
    config = dict(config)
    has_value_head, options = config.pop("has_value_head", False), config.pop("megatron", {})
    with pytest.raises(InputError, match=said):
        check_lora(
            QWEN3 | {"num_experts_per_tok": 2, "norm_topk_prob": True} | config,
            Lora.model_validate(lora),
            options,
            has_value_head=has_value_head,
        )


def test_adapters_that_nobody_wrote_are_not_in_the_settings() -> None:
    """A digest of settings stays what it was before there were adapters."""
    assert "lora" not in TrainerSettings().model_dump(mode="json")
    written = TrainerSettings(lora=Lora(rank=8))
    assert TrainerSettings.model_validate(written.model_dump(mode="json")) == written


def test_the_committed_table_is_the_installed_megatron() -> None:
    assert json.loads(TABLE.read_text()) == describe_options()
    assert set(describe_options()) >= ALLOWED
    for pattern in named():
        assert any(fnmatchcase(name, pattern) for name in describe_options()), pattern


def test_every_option_is_proven_or_refused_with_a_reason() -> None:
    """A name of a newer Megatron is refused, not passed on."""
    for name in json.loads(TABLE.read_text()):
        if name not in ALLOWED:
            assert f"trainer.megatron.{name} cannot be used: " in refusal(options={name: True})
    assert "no test shows that it changes" in refusal(options={"batch_p2p_comm": False})


def test_a_misspelt_option_gets_a_suggestion() -> None:
    message = refusal(options={"recompute_granularty": "full"})
    assert "did you mean recompute_granularity?" in message


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"recompute_num_layers": "two"}, "takes int or null"),
        ({"recompute_num_layers": True}, "takes int or null"),
        ({"recompute_granularity": "some"}, "takes full"),
        ({"recompute_granularity": "full", "recompute_num_layers": 1}, "needs recompute_method"),
        ({"recompute_granularity": "full", "recompute_method": "block"}, "recompute_num_layers"),
        ({"recompute_num_layers": 2}, "with recompute_granularity: full only"),
        ({"recompute_granularity": "selective", "recompute_method": "block"}, "full only"),
        ({"recompute_modules": ["mlp"]}, "selective only"),
        ({"recompute_granularity": "selective", "recompute_modules": []}, "core_attn and mlp"),
        ({"recompute_granularity": "selective", "recompute_modules": ["moe"]}, "core_attn and mlp"),
        ({"recompute_num_layers": 0}, "1 or more"),
        ({"bucket_size": 4000}, "without overlap_grad_reduce"),
        ({"bucket_size": -1, "overlap_grad_reduce": True}, "1 or more"),
        ({"num_layers_in_first_pipeline_stage": 1}, "pp is 1"),
        ({"optimizer_offload_fraction": 2}, "from 0 to 1"),
        ({"use_precision_aware_optimizer": True}, "Transformer Engine"),
        ({"pin_cpu_grads": False}, "needs optimizer_cpu_offload"),
        ({"overlap_cpu_optimizer_d2h_h2d": True}, "needs optimizer_cpu_offload"),
        ({"moe_aux_loss_coeff": 0.01}, "this model is dense"),
        ({"moe_z_loss_coeff": 0.01}, "this model is dense"),
        ({"moe_router_bias_update_rate": 0.001}, "this model is dense"),
        ({"moe_aux_loss_coeff": [0.01]}, "0 or more"),
        ({"moe_z_loss_coeff": -1.0}, "0 or more"),
        # What would be another model than the exported one.
        ({"hidden_dropout": 0.2}, "dropout"),
        ({"softmax_scale": 0.05}, "config.json decides it"),
        ({"glu_linear_offset": 1.0}, "config.json decides it"),
        ({"activation_func_clamp_value": 0.1}, "config.json decides it"),
        ({"attention_output_gate": True}, "config.json decides it"),
        ({"mtp_num_layers": 1}, "config.json decides it"),
        # What does nothing here.
        ({"fp8": "hybrid"}, "Transformer Engine"),
        ({"fp8_recipe": "mxfp8"}, "Transformer Engine"),
        ({"fp4": "e2m1"}, "Transformer Engine"),
        ({"exp_avg_dtype": "bf16"}, "Transformer Engine"),
        ({"transformer_impl": "transformer_engine"}, "Transformer Engine"),
        ({"use_te_activation_func": True}, "Transformer Engine"),
        ({"cpu_offloading": True}, "Transformer Engine"),
        ({"gradient_accumulation_fusion": True}, "apex"),
        ({"moe_router_topk": 2}, "routed to experts"),
        ({"moe_enable_routing_replay": True}, "algorithm.routing_replay"),
        ({"flash_decode": True}, "no effect"),
        ({"attention_softmax_in_fp32": True}, "no effect"),
        ({"init_method_std": 0.5}, "loaded from the model folder"),
        ({"enable_cuda_graph": True}, "captured graph"),
        ({"tensor_model_parallel_size": 2}, "resources: trainer.tp"),
        ({"num_layers": 3}, "config.json"),
        ({"calculate_per_token_loss": False}, "trainer itself"),
        ({"attention_dropout": 0.1}, "no effect"),
        ({"defer_embedding_wgrad_compute": True}, "no effect"),
        ({"timers": None}, "trainer itself"),
        ({"virtual_pipeline_model_parallel_size": 2}, "corrupted"),
        (
            {"recompute_granularity": "selective", "recompute_modules": ["core_attn", "layernorm"]},
            "Transformer Engine",
        ),
        ({"expert_tensor_parallel_size": 2}, "trainer.etp"),
        ({"lr": 1e-3}, "optimizer.lr"),
        ({"use_distributed_optimizer": False}, "trainer itself"),
        ({"loss_scale": 2.0}, "no effect"),
        ({"muon_momentum": 0.9}, "no effect"),
        ({"overlap_param_gather": True}, "published before"),
        ({"use_megatron_fsdp": True}, "FSDP"),
        ({"fp8_param_gather": True}, "fp8"),
        ({"optimizer_cpu_offload": True}, "needs use_precision_aware_optimizer"),
        ({"optimizer_offload_fraction": 0.5}, "needs optimizer_cpu_offload"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], reason: str) -> None:
    assert reason in refusal(options=options)


def test_offload_of_an_fp32_trainer_is_refused() -> None:
    """Its distributed optimizer would give views to torch, which says "non-leaf Tensor"."""
    check_layout(QWEN3, Parallel(), OFFLOAD, "bf16")
    with pytest.raises(InputError, match=r"needs trainer\.precision: bf16"):
        check_layout(QWEN3, Parallel(), OFFLOAD, "fp32")


@pytest.mark.parametrize(
    ("first", "last", "pp"), [(4, None, 2), (3, None, 3), (None, 1, 3), (2, 1, 2), (3, 2, 3)]
)
def test_pipeline_stages_without_equally_many_layers_are_refused(
    first: int | None, last: int | None, pp: int
) -> None:
    options = {
        "num_layers_in_first_pipeline_stage": first,
        "num_layers_in_last_pipeline_stage": last,
    }
    assert "pipeline stages" in refusal(Parallel(pp=pp), options)


def test_gradients_in_half_precision_need_a_model_in_half_precision() -> None:
    with pytest.raises(InputError, match="no effect with trainer"):
        check_layout(QWEN3, Parallel(), {"grad_reduce_in_fp32": False}, "fp32")


@pytest.mark.parametrize(
    ("parallel", "config", "reason"),
    [
        (Parallel(tp=3), {}, "attention heads (4)"),
        (Parallel(tp=4), {}, "KV groups (2)"),
        (Parallel(tp=2), {"vocab_size": 511}, "vocabulary (511)"),
        (Parallel(tp=2), {"intermediate_size": 255}, "feed-forward size (255)"),
        (Parallel(pp=3), {}, "layers (4)"),
        (Parallel(dp=2, ep=2), {}, "mixture-of-experts"),
        (None, {"model_type": "gpt2"}, "supported families: deepseek_v3, gemma3_text, glm4,"),
        (None, {"attention_bias": True}, "attention_bias"),
        (None, {"use_sliding_window": True}, "sliding-window"),
        (None, {"hidden_act": "gelu"}, "'gelu'"),
        (None, {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "'yarn'"),
        (None, {"num_hidden_layers": 0}, "num_hidden_layers"),
    ],
)
def test_models_and_layouts_that_do_not_fit_are_refused(
    parallel: Parallel | None, config: dict[str, Any], reason: str
) -> None:
    assert reason in refusal(parallel, **config)


def test_the_check_imports_neither_torch_nor_megatron() -> None:
    code = (
        "import sys, engines.megatron.options;"
        "sys.exit(bool({'torch', 'megatron', 'numpy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
