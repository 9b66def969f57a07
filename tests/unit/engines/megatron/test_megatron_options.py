"""Layouts and options that cannot work are refused before anything starts."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from engines.megatron.options import RESULT_NEUTRAL, check_layout
from engines.megatron.options_table import TABLE, describe_options
from engines.megatron.spec import Parallel
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


def refusal(
    parallel: Parallel | None = None, options: dict[str, Any] | None = None, **config: Any
) -> str:
    with pytest.raises(InputError) as caught:
        check_layout(QWEN3 | config, parallel or Parallel(), options or {})
    return str(caught.value)


def test_good_layouts_and_options_pass() -> None:
    options = {"recompute_granularity": "full", "recompute_num_layers": 1, "hidden_dropout": 0}
    check_layout(QWEN3, Parallel(tp=2, pp=4, cp=2, dp=3), options)


def test_options_of_the_optimizer_and_of_data_parallelism_pass() -> None:
    state = {"use_precision_aware_optimizer": True, "exp_avg_dtype": "bf16"}
    offload = {"optimizer_cpu_offload": True, "optimizer_offload_fraction": 1}
    overlap = {"overlap_grad_reduce": True, "bucket_size": 1000, "grad_reduce_in_fp32": False}
    check_layout(QWEN3, Parallel(dp=2), state | offload | overlap)


def test_the_committed_table_is_the_installed_megatron() -> None:
    import json

    assert json.loads(TABLE.read_text()) == describe_options()
    assert set(describe_options()) >= RESULT_NEUTRAL


def test_a_misspelt_option_gets_a_suggestion() -> None:
    message = refusal(options={"recompute_granularty": "full"})
    assert "did you mean recompute_granularity?" in message


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"recompute_num_layers": "two"}, "takes int or null"),
        ({"recompute_num_layers": True}, "takes int or null"),
        ({"recompute_granularity": "some"}, "takes =full"),
        ({"tensor_model_parallel_size": 2}, "resources: trainer.tp"),
        ({"num_layers": 3}, "config.json"),
        ({"calculate_per_token_loss": False}, "trainer itself"),
        ({"attention_dropout": 0.1}, "no effect"),
        ({"defer_embedding_wgrad_compute": True}, "no effect"),
        ({"timers": None}, "Python object"),
        ({"virtual_pipeline_model_parallel_size": 2}, "corrupted"),
        ({"recompute_modules": ["core_attn", "layernorm"]}, "Transformer Engine"),
        ({"expert_tensor_parallel_size": 2}, "wrong expert gradients"),
        ({"lr": 1e-3}, "optimizer.lr"),
        ({"use_distributed_optimizer": False}, "trainer itself"),
        ({"loss_scale": 2.0}, "no effect"),
        ({"muon_momentum": 0.9}, "no effect"),
        ({"overlap_param_gather": True}, "published before"),
        ({"use_megatron_fsdp": True}, "FSDP"),
        ({"fp8_param_gather": True}, "fp8"),
        ({"exp_avg_dtype": "int8"}, "takes =bf16"),
        ({"optimizer_cpu_offload": True}, "needs use_precision_aware_optimizer"),
        ({"optimizer_offload_fraction": 0.5}, "needs optimizer_cpu_offload"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], reason: str) -> None:
    assert reason in refusal(options=options)


def test_latent_attention_with_tensor_parallelism_is_refused_for_its_gradients() -> None:
    message = refusal(Parallel(tp=2), {"multi_latent_attention": True})
    assert "wrong gradients" in message


@pytest.mark.parametrize(
    ("parallel", "config", "reason"),
    [
        (Parallel(tp=3), {}, "attention heads (4)"),
        (Parallel(tp=4), {}, "KV groups (2)"),
        (Parallel(tp=2), {"vocab_size": 511}, "vocabulary (511)"),
        (Parallel(tp=2), {"intermediate_size": 255}, "feed-forward size (255)"),
        (Parallel(pp=3), {}, "layers (4)"),
        (Parallel(dp=2, ep=2), {}, "mixture-of-experts"),
        (None, {"model_type": "gpt2"}, "supported families: llama"),
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
