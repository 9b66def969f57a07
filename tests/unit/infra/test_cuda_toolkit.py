"""The toolkit that servers compile kernels with, made of the lock's packages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from engines.sglang.servers import host
from infra import cuda
from infra.cuda import compile_problem, has_driver_library, toolkit

pytestmark = [
    pytest.mark.unit,
    pytest.mark.skipif(shutil.which("g++") is None, reason="kernels need a C++ compiler"),
]
# Compiles "for the GPU" what is plain C++ besides the launch: the compiler of the packages is one
# program that finds its things by CUDA_HOME, and what follows is the host's own linker.
_NVCC = """#!/bin/sh
test -d "$CUDA_HOME/nvvm" || exit 3
echo 'extern "C" int cudaGetLastError(); extern "C" int run() { return cudaGetLastError(); }' > k.cc
exec g++ -fPIC -c k.cc -o k.o
"""


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders as NVIDIA's packages leave them: no `lib64`, and the library under its full name."""
    root = tmp_path / "site/nvidia/cu99"
    for name in ("bin", "include", "nvvm", "lib"):
        (root / name).mkdir(parents=True)
    nvcc = root / "bin/nvcc"
    nvcc.write_text(_NVCC)
    nvcc.chmod(0o755)
    source = tmp_path / "cudart.cc"
    source.write_text('extern "C" int cudaGetLastError() { return 0; }')
    library = root / "lib/libcudart.so.99"
    command = ["g++", "-shared", "-fPIC", str(source), "-o", str(library)]
    subprocess.run([*command, "-Wl,-soname,libcudart.so.99"], check=True)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path / "home"))
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    for name in ("PATH", "LD_LIBRARY_PATH"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    return root


def test_the_packages_become_a_toolkit_that_links(
    packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_HOME", str(packages))
    assert "cannot find -lcudart" in compile_problem()
    monkeypatch.delenv("CUDA_HOME")
    cuda.use_toolkit()
    found = Path(os.environ["CUDA_HOME"])
    assert found.parent == Path(os.environ["TRIBUTARY_HOME"]).resolve()
    assert (found / "include").resolve() == packages / "include"
    assert compile_problem() == ""
    path = os.environ["PATH"].split(os.pathsep)
    assert path[:2] == [str(found / "bin"), str(Path(sys.executable).parent)]


def test_what_flashinfer_links_its_kernels_to_has_to_be_there(
    packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its command ends in `-L$cuda_home/lib64 -L$cuda_home/lib64/stubs -lcudart -lcuda`."""
    monkeypatch.setattr(cuda, "has_cuda", lambda: True)
    cuda.use_toolkit()
    stubs = Path(os.environ["CUDA_HOME"]) / "lib64/stubs"
    if not has_driver_library():
        assert "cannot find -lcuda" in compile_problem()
    stubs.mkdir()
    (stubs / "libcuda.so").symlink_to(packages / "lib/libcudart.so.99")
    assert compile_problem() == ""


def test_python_headers_are_missed_before_triton_needs_them(
    packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton compiles its driver.c, which includes Python.h; Debian's python3 comes without."""
    cuda.use_toolkit()
    monkeypatch.setattr(cuda.sysconfig, "get_path", lambda _: str(tmp_path))
    assert "Python.h is missing" in compile_problem()
    (tmp_path / "Python.h").touch()
    assert compile_problem() == ""


def test_links_of_an_earlier_installation_are_replaced(packages: Path) -> None:
    first = toolkit()
    assert first is not None
    (first / "nvvm").unlink()
    (first / "nvvm").symlink_to("/nowhere")
    assert toolkit() == first
    assert (first / "nvvm").resolve() == packages / "nvvm"


def test_a_toolkit_that_a_person_named_stays(
    packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert toolkit() == tmp_path
    assert compile_problem() == (
        f"{tmp_path}/bin/nvcc does not run: [Errno 2] No such file or directory:"
        f" '{tmp_path}/bin/nvcc'"
    )


def test_without_a_host_compiler_that_is_what_is_said(
    packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(packages / "bin"))
    assert "g++ is missing" in compile_problem()


def test_what_a_sleeping_servers_hook_needs_is_found(
    packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dynamic linker itself is asked: a preloaded library that lacks another ends a process."""
    source, hook = tmp_path / "hook.cc", tmp_path / "hook.so"
    source.write_text('extern "C" int cudaGetLastError(); int use() { return cudaGetLastError(); }')
    needs = str(packages / "lib/libcudart.so.99")
    subprocess.run(["g++", "-shared", "-fPIC", str(source), needs, "-o", str(hook)], check=True)

    def preloaded() -> int:
        environment = os.environ | {"LD_PRELOAD": str(hook)}
        return subprocess.run(["/bin/true"], env=environment, capture_output=True).returncode

    monkeypatch.setenv("SGLANG_MEMORY_SAVER_CUDA_GRAPH", "")
    monkeypatch.delenv("SGLANG_MEMORY_SAVER_CUDA_GRAPH")
    assert preloaded() == 127
    host.prepare_memory_saver()
    assert preloaded() == 0
    assert os.environ["SGLANG_MEMORY_SAVER_CUDA_GRAPH"] == "1", "graphs are given back, too"
