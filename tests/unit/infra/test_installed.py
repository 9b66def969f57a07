"""What `tributary doctor` says of the packages and of torch."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from infra.cuda import TorchBuild
from infra.stack import installed
from infra.stack.installed import judge_torch, lock_pins, torch_build

pytestmark = pytest.mark.unit
CPU_BUILD = TorchBuild("2.13.0+cpu", None, sees_gpu=False)


def test_a_cuda_build_is_never_called_one_for_the_cpu() -> None:
    plain = judge_torch(TorchBuild("2.13.0", "13.0", sees_gpu=False), has_gpu=False)
    assert plain.ok
    assert plain.detail == "2.13.0, built for CUDA 13.0, on the CPU"
    assert judge_torch(CPU_BUILD, has_gpu=False).detail == "2.13.0+cpu, built for CPU"


def test_a_build_that_cannot_use_the_gpu_is_a_finding() -> None:
    assert not judge_torch(CPU_BUILD, has_gpu=True).ok
    assert not judge_torch(TorchBuild("2.14.1", "13.0", sees_gpu=False), has_gpu=True).ok
    assert judge_torch(TorchBuild("2.14.1", "13.0", sees_gpu=True), has_gpu=True).ok


def test_a_torch_without_its_libraries_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "torch/__init__.py"
    broken.parent.mkdir()
    broken.write_text("raise ImportError('libcublasLt.so.13: cannot open shared object file')\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)
    check = torch_build()
    assert not check.ok
    assert "does not load: ImportError: libcublasLt.so.13" in check.detail
    assert check.repair == "`make clean install LOCK=locks/cpu.txt`"


def test_the_lock_that_was_installed_is_the_one_that_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock for GPUs on a host without one, and the other way round."""
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks/cpu.txt").write_text("torch==2.13.0\n")
    only_cuda = "nvidia-cublas==13.1.1.3\nsglang-kernel==1\nflashinfer-python==1\n"
    (tmp_path / "locks/cuda.txt").write_text(f"torch==2.14.1\n{only_cuda}")
    monkeypatch.setattr(installed, "SOURCE_ROOT", tmp_path)
    kernels = {"sglang-kernel": "1", "flashinfer-python": "1"}
    here = dict[str, str]()
    monkeypatch.setattr(installed, "_installed", lambda name: here.get(name, ""))
    for has_gpu in (False, True):
        monkeypatch.setattr(installed, "has_cuda", lambda has_gpu=has_gpu: has_gpu)
        here |= {"torch": "2.14.1", "nvidia-cublas": "13.1.1.3", **kernels}
        assert installed.packages().detail == "4 as in cuda.txt"
        here["torch"] = "2.13.0"
        found = installed.packages()
        assert found.detail == "torch 2.13.0, not 2.14.1"
        assert found.repair == "`make clean install LOCK=locks/cuda.txt`"
        for name in kernels:
            del here[name]
        assert installed.packages().detail == "1 as in cpu.txt", "torch brings the rest"


def test_a_host_that_cannot_compile_kernels_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(installed, "has_cuda", lambda: False)
    monkeypatch.setattr(installed, "installed_lock", lambda: Path("cpu.txt"))
    assert installed.kernels().detail == "nothing is compiled on a CPU"
    monkeypatch.setattr(installed, "has_cuda", lambda: True)
    monkeypatch.setattr(installed, "compile_problem", lambda: "g++ is missing")
    assert "apt-get install g++ python3-dev" in installed.kernels().repair
    monkeypatch.setattr(
        installed, "compile_problem", lambda: "g++: ld: cannot find -lcuda: No such"
    )
    assert "libcuda.so.1" in installed.kernels().repair
    monkeypatch.setattr(installed, "compile_problem", lambda: "no CUDA compiler")
    assert installed.kernels().repair == "`make clean install LOCK=locks/cuda.txt`"


def test_packages_of_other_pythons_are_not_missed() -> None:
    here = f"python_full_version == '{platform.python_version()}'"
    text = f"# a lock\nsix==1.17.0\nold==1 ; python_full_version < '3.0'\nnow==2 ; {here}\n"
    assert lock_pins(text) == {"six": "1.17.0", "now": "2"}


def test_a_python_beyond_the_locks_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    for version, ok in (("3.11.2", True), ("3.13.0", True), ("3.14.1", False), ("3.10.4", False)):
        monkeypatch.setattr(platform, "python_version", lambda version=version: version)
        assert installed.python_version().ok is ok
