"""Where a GPU is: one answer, what it refuses and what it leaves off."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from engines.sglang import arguments
from engines.sglang.spec import FleetSpec
from flows.checks import exactness
from flows.checks.recipe import check_recipe
from flows.load import load_recipe
from flows.post_train import plan_post_train
from infra import cuda
from infra.errors import InputError

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
    monkeypatch.setattr(exactness, "has_cuda", _with_gpu)
    recipe = load_recipe("cpu-smoke")
    with pytest.raises(InputError, match=r"this host has a GPU.*set `determinism: close`"):
        check_recipe(recipe, plan_post_train(recipe))
    close = load_recipe("cpu-smoke", ["determinism=close"])
    check_recipe(close, plan_post_train(close))


@pytest.mark.parametrize(("gpu", "deterministic"), [(_with_gpu, None), (lambda: False, True)])
def test_deterministic_kernels_are_off_on_a_gpu_unless_passed_through(
    gpu: Callable[[], bool], deterministic: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arguments, "has_cuda", gpu)
    name = "enable_deterministic_inference"
    assert arguments.server_options(FleetSpec(), tmp_path, 1, 1, 0).get(name) is deterministic
    passed = FleetSpec(sglang={name: True})
    assert arguments.server_options(passed, tmp_path, 1, 1, 0)[name] is True


def test_exact_without_seeds_is_refused() -> None:
    change = "unified.path.rl.fleet={sglang: {enable_deterministic_inference: false}}"
    recipe = load_recipe("cpu-smoke", [change])
    with pytest.raises(InputError, match="enable_deterministic_inference was not tested"):
        check_recipe(recipe, plan_post_train(recipe))
