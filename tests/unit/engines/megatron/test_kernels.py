"""Fused kernels are used where the device has them, by name refused where it does not."""

from __future__ import annotations

import logging
from collections.abc import Generator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import attention

from engines.megatron import device, kernels
from engines.megatron.kernels import Kernels, choose, in_use
from infra.errors import InputError

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def restored() -> Generator[None]:
    yield
    choose("plain")


class Chip:
    """A GPU, as far as anything asks that chooses kernels."""

    def __init__(self, patch: pytest.MonkeyPatch, generation: int, apart: float = 0.001) -> None:
        self.attention = ""
        self.problem: Exception | None = None
        patch.setattr(kernels, "has_cuda", lambda: True)
        patch.setattr(torch.cuda, "is_initialized", lambda: True)
        patch.setattr(torch.cuda, "get_device_capability", lambda: (generation, 0))
        patch.setattr(kernels, "attention_apart", lambda: apart)
        patch.setattr(attention, "activate_flash_attention_impl", self.activate)
        patch.setattr(attention, "restore_flash_attention_impl", self.restore)
        found: Any = {"triton": SimpleNamespace()}.get
        patch.setattr(kernels, "find_spec", found)

    def activate(self, name: str) -> None:
        self.attention = name
        if self.problem is not None:
            raise self.problem

    def restore(self, _raise_warn: bool = True) -> None:
        self.attention = ""


def test_a_cpu_computes_with_plain_kernels_unless_fused_ones_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert choose("auto") == Kernels() == in_use()
    assert choose("fused") == Kernels(compiled=True) == in_use()
    monkeypatch.setattr(kernels.shutil, "which", lambda _: None)
    with pytest.raises(InputError, match=r"here is no torch.compile \(g\+\+ is not installed\)"):
        choose("fused")
    assert choose("plain") == Kernels() == in_use()


def test_a_gpu_whose_host_cannot_compile_what_starts_kernels_computes_with_plain_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Triton would fail in the middle of the first step."""
    Chip(monkeypatch, 8)
    monkeypatch.setattr(kernels, "launcher_problem", lambda: "Python.h is missing")
    assert not choose("auto").compiled
    with pytest.raises(InputError, match=r"no torch.compile \(Python.h is missing\)"):
        choose("fused")


@pytest.mark.parametrize(("generation", "name"), [(8, ""), (9, "FA4"), (10, "FA4"), (12, "")])
def test_a_chip_gets_the_flash_attention_of_its_generation(
    generation: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chip = Chip(monkeypatch, generation)
    for wanted in ("auto", "fused"):
        assert choose(wanted) == Kernels(compiled=True, attention=name)
        assert chip.attention == name
    assert choose("plain") == Kernels()
    assert chip.attention == ""


@pytest.mark.parametrize(
    ("problem", "apart", "said"),
    [
        (ImportError("No module named 'flash_attn'"), 0.0, "No module named 'flash_attn'"),
        (RuntimeError("line\nptxas failed"), 0.0, "ptxas failed"),
        (None, 0.3, "0.3 of the largest value away from fp32"),
        (None, float("nan"), "nan of the largest value"),
    ],
)
def test_a_kernel_that_fails_or_computes_something_else_is_not_used_and_said(
    problem: Exception | None,
    apart: float,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    chip = Chip(monkeypatch, 9, apart)
    chip.problem = problem
    with caplog.at_level(logging.WARNING):
        found = choose("auto")
    assert (found.compiled, found.attention, chip.attention) == (True, "", "")
    assert said in caplog.text
    with pytest.raises(InputError, match=r"trainer\.kernels is `fused`") as refused:
        choose("fused")
    assert said in str(refused.value)
    assert "write `auto`" in str(refused.value)
    assert in_use() == found, "what was refused changed nothing"


def test_the_attention_of_this_device_is_compared_with_fp32() -> None:
    assert 0 < kernels.attention_apart() < 0.02


def test_the_norm_of_all_gradients_has_the_bits_of_megatrons_own() -> None:
    from megatron.core.optimizer import clip_grads
    from megatron.core.utils import local_multi_tensor_l2_norm

    device.prepare()
    random = torch.Generator().manual_seed(0)
    with device.cuda_means_cpu():
        for count in (1, 2, 37):
            sizes = torch.randint(1, 5000, (count,), generator=random).tolist()
            gradients = [torch.randn(size, generator=random) for size in sizes]
            theirs, _ = local_multi_tensor_l2_norm(0, None, [gradients], False)
            ours, _ = clip_grads.l2_norm_impl(0, None, [gradients], False)
            assert clip_grads.l2_norm_impl is not local_multi_tensor_l2_norm
            assert torch.equal(ours, theirs)
