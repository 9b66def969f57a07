"""Where a GPU is: one answer, what it refuses and what it leaves off."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from engines.devices.child_processes import ChildProcesses
from engines.families.common import registry
from engines.sglang import arguments
from engines.sglang.server_options import table
from engines.sglang.servers.server import Place, Server, architecture
from engines.sglang.spec import FleetSpec
from flows.checks import servers
from flows.checks.recipe_checks import check_recipe, notes
from flows.load import load_recipe
from flows.post_train import plan_post_train
from infra import cuda
from infra.errors import InputError
from tests.parts.tiny import tiny_model

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("visible", "driver", "found"),
    [(None, True, True), ("0", True, True), ("", True, False), ("-1", True, False),
     (None, False, False)],
)  # fmt: skip
def test_a_gpu_counts_where_its_driver_is_and_nobody_hides_it(
    visible: str | None, driver: bool, found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if driver:
        (tmp_path / "version").touch()
    monkeypatch.setattr(cuda, "_DRIVER", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert cuda.has_cuda.__wrapped__() is found


def test_the_drivers_name_of_the_first_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_DRIVER", tmp_path)
    assert cuda.gpu_name() == ""
    for place, name in (("0000:02:00.0", "Other"), ("0000:01:00.0", "NVIDIA H100 80GB HBM3")):
        (folder := tmp_path / "gpus" / place).mkdir(parents=True)
        (folder / "information").write_text(f"IRQ: 7\nModel: \t {name}\n")
    assert cuda.gpu_name() == "NVIDIA H100 80GB HBM3"


def test_torch_says_how_it_was_built() -> None:
    import torch

    assert cuda.torch_build() == cuda.TorchBuild(
        torch.__version__, torch.version.cuda, torch.cuda.is_available()
    )


def _with_gpu() -> bool:
    return True


def test_exact_is_refused_where_it_was_never_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "has_cuda", _with_gpu)
    recipe = load_recipe("cpu-smoke", ["determinism=exact"])
    with pytest.raises(InputError, match=r"this host has a GPU.*set `determinism: close`"):
        check_recipe(recipe, plan_post_train(recipe))
    for kind, told in (("close", []), ("auto", [servers.NOT_HERE])):
        recipe = load_recipe("cpu-smoke", [f"determinism={kind}"])
        plan = plan_post_train(recipe)
        check_recipe(recipe, plan)
        assert [line for line in notes(recipe, plan) if "determinism" in line] == told


@pytest.mark.parametrize("name", ["cpu-demo", "cpu-smoke", "function-calling", "learning-study"])
def test_the_demos_run_on_a_host_with_a_gpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "has_cuda", _with_gpu)
    recipe = load_recipe(name)
    check_recipe(recipe, plan_post_train(recipe))
    monkeypatch.setattr(servers, "has_cuda", lambda: False)
    lossy = "evaluate.fleet.sglang={enable_deterministic_inference: false}"
    inexact = load_recipe(name, [lossy])
    with pytest.raises(InputError, match="was not tested to be batch-invariant"):
        check_recipe(inexact, plan_post_train(inexact))


@pytest.mark.parametrize(("gpu", "deterministic"), [(_with_gpu, None), (lambda: False, True)])
def test_deterministic_kernels_are_off_on_a_gpu_unless_passed_through(
    gpu: Callable[[], bool], deterministic: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arguments, "has_cuda", gpu)
    (tmp_path / "config.json").write_text("{}")
    name = "enable_deterministic_inference"
    assert arguments.server_options(FleetSpec(), tmp_path, 1, 1, 0).get(name) is deterministic
    passed = FleetSpec(sglang={name: True})
    assert arguments.server_options(passed, tmp_path, 1, 1, 0)[name] is True


def test_a_family_whose_kernels_no_cpu_has_is_served_on_gpus_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server would end in the middle of an import. A judge may be of a family that we do not
    know, and servers of other hosts are described here, too."""
    config = {"model_type": "qwen3_5_text"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr(registry, "has_cuda", lambda: False)
    with pytest.raises(InputError, match="qwen3_5_text on GPUs only: its delta nets call kernels"):
        Server(ChildProcesses(tmp_path), "server-0", FleetSpec(), tmp_path)
    registry.check_servable({"model_type": "no-family"})
    assert arguments.server_options(FleetSpec(), tmp_path, 1, 1, 0)["device"] == "cpu"
    monkeypatch.setattr(registry, "has_cuda", lambda: True)
    with pytest.raises(InputError, match="lacks full_attention_interval, which SGLang reads"):
        registry.check_servable(config)
    registry.check_servable(config | {"full_attention_interval": 4})


def test_check_says_which_stages_a_host_without_gpus_cannot_serve(tmp_path: Path) -> None:
    """Supervised training asks no server."""
    folder = tiny_model(tmp_path, "qwen3_5_text")
    here, there = (
        load_recipe("cpu-smoke", [f"base={{folder: {folder}}}", *more])
        for more in ([], ["resources.devices={memory_gb: 80, per_host: 8}"])
    )
    said = {
        stage.name: list(servers.serving_problems(here, stage)) for stage in plan_post_train(here)
    }
    refused = {name for name, lines in said.items() if lines}
    assert {"unified-rl"} <= refused
    assert not any(name.endswith("sft") for name in refused)
    assert said["unified-rl"][0].startswith("stage unified-rl: SGLang serves a qwen3_5_text on GPU")
    assert not any(list(servers.serving_problems(there, s)) for s in plan_post_train(there))


@pytest.mark.parametrize("gpu", [True, False])
def test_a_host_imports_the_classes_that_it_can_serve(
    gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "has_cuda", lambda: gpu)
    served = set(registry.served_families())
    assert set(registry.family_names()) - served == (set() if gpu else {"qwen3_5_text"})


@pytest.mark.parametrize(
    ("model", "precision", "served"),
    [
        ("float32", "bf16", "bfloat16"),
        ("float32", "fp32", "float32"),
        ("bfloat16", "fp32", "float32"),
        ("float32", None, "float32"),  # SGLang's own choice is float16
        ("bfloat16", None, "bfloat16"),
        (None, None, "float32"),
    ],
)
def test_a_server_has_the_trainers_type_or_else_the_models(
    model: str | None,
    precision: str | None,
    served: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arguments, "has_cuda", _with_gpu)
    (tmp_path / "config.json").write_text(json.dumps({"torch_dtype": model} if model else {}))
    fleet = FleetSpec(sglang={"dtype": "auto"})
    for spec in (fleet, FleetSpec()):
        wanted = spec.of_trainer(precision) if precision else spec
        options = arguments.server_options(wanted, tmp_path, 1, 1, 0)
        assert options["dtype"] == served
        # FlashAttention refuses 32 bits.
        assert options.get("attention_backend") == ("triton" if served == "float32" else None)
    written = FleetSpec(sglang={"dtype": "bfloat16", "attention_backend": "fa3"}).of_trainer("fp32")
    options = arguments.server_options(written, tmp_path, 1, 1, 0)
    assert (options["dtype"], options["attention_backend"]) == ("bfloat16", "fa3")


def test_one_running_server_serves_both_a_trainer_and_a_model_of_its_type(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"dtype": "float32"}')
    spec, place = FleetSpec(), Place(1)
    assert architecture(spec.of_trainer("fp32"), tmp_path, place) == architecture(
        spec, tmp_path, place
    )
    assert architecture(spec.of_trainer("bf16"), tmp_path, place) != architecture(
        spec, tmp_path, place
    )


def test_a_gpus_cache_is_as_large_as_it_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text("{}")
    on_cpu = arguments.server_options(FleetSpec(), tmp_path, 1, 1, 0)
    monkeypatch.setattr(arguments, "has_cuda", _with_gpu)
    on_gpu = arguments.server_options(FleetSpec(), tmp_path, 1, 1, 0)
    assert (on_cpu["max_total_tokens"], on_gpu.get("max_total_tokens")) == (16384, None)
    limited = arguments.server_options(FleetSpec(max_total_tokens=9), tmp_path, 1, 1, 0)
    assert limited["max_total_tokens"] == 9
    assert on_cpu["skip_tokenizer_init"]
    assert on_gpu["skip_tokenizer_init"]


def test_a_type_in_which_trained_values_overflow_is_refused() -> None:
    recipe = load_recipe("cpu-smoke", ["unified.path.rl.fleet={sglang: {dtype: float16}}"])
    with pytest.raises(InputError, match=r"unified-rl: fleet.sglang.dtype: float16 cannot hold"):
        check_recipe(recipe, plan_post_train(recipe))


def test_exact_without_seeds_is_refused() -> None:
    change = "unified.path.rl.fleet={sglang: {enable_deterministic_inference: false}}"
    recipe = load_recipe("cpu-smoke", [change])
    with pytest.raises(InputError, match="enable_deterministic_inference was not tested"):
        check_recipe(recipe, plan_post_train(recipe))


def test_servers_in_fp8_multiply_by_kernels_that_leave_matrices_as_they_were_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others store them anew, and would take no update."""
    (tmp_path / "config.json").write_text('{"dtype": "float32"}')
    spec = FleetSpec(quantization="fp8-block")
    on_cpu = arguments.server_options(spec, tmp_path, 1, 1, 0)
    told = json.loads(on_cpu["json_model_override_args"])["quantization_config"]
    assert (told["quant_method"], told["weight_block_size"]) == ("fp8", [128, 128])
    assert (on_cpu["quantization"], on_cpu["dtype"]) == ("fp8", "float32")
    assert "moe_runner_backend" not in on_cpu
    monkeypatch.setattr(arguments, "has_cuda", _with_gpu)
    on_gpu = arguments.server_options(spec, tmp_path, 1, 1, 0)
    assert on_gpu["dtype"] == "bfloat16", "SGLang refuses FP8 beside float32"
    for name in ("fp8_gemm_runner_backend", "moe_runner_backend"):
        assert on_gpu[name] == "triton"
        assert "=triton" in table()[name]
    assert "=fp8" in table()["quantization"]
    assert arguments.server_options(FleetSpec(), tmp_path, 1, 1, 0).get("quantization") is None
