"""The CUDA toolkit with which SGLang and flashinfer compile kernels while a server starts.

The packages of the CUDA lock hold a compiler, its headers and the runtime's library, but not in the
folders where a toolkit has them: `lib64/libcudart.so` is looked for, and the package has
`lib/libcudart.so.13`. Four links make a toolkit of them.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from infra.home import home

COMPILE_S = 120.0
"""what compiling the smallest kernel may take on a crowded machine"""
_SYSTEM = Path("/usr/local/cuda")
_KERNEL = """
#include <cuda_runtime.h>
__global__ void add_one(float* x) { x[threadIdx.x] += 1.0f; }
extern "C" int run(float* x) { add_one<<<1, 32>>>(x); return (int)cudaGetLastError(); }
"""


def packaged_toolkit() -> Path | None:
    """The folder of the installed packages' compiler and libraries; None without them.

    Example: .venv/lib/python3.11/site-packages/nvidia/cu13
    """
    spec = importlib.util.find_spec("nvidia")
    places = (spec and spec.submodule_search_locations) or ()
    found = [
        nvcc.parents[1] for place in places for nvcc in Path(place).glob("cu[0-9][0-9]/bin/nvcc")
    ]
    return max(found, key=lambda folder: int(folder.name[2:]), default=None)


def toolkit() -> Path | None:
    """The toolkit to compile with; None if there is none.

    What a person named in CUDA_HOME comes first, then the one of the installed packages, which fits
    this torch, then one of the host.
    """
    named = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    if named:
        return Path(named)
    packaged = packaged_toolkit()
    if packaged is not None:
        return _linked(packaged)
    if (_SYSTEM / "bin/nvcc").exists():
        return _SYSTEM
    nvcc = shutil.which("nvcc")
    return Path(nvcc).resolve().parents[1] if nvcc else None


def use_toolkit() -> None:
    """Let this process, and those that it starts, compile kernels; without a toolkit it changes
    nothing, and `tributary doctor` tells of it."""
    found = toolkit()
    if found is None:
        return
    os.environ.setdefault("CUDA_HOME", str(found))
    # The interpreter's folder has ninja, which a process of Ray's does not find by itself.
    _prepend("PATH", found / "bin", Path(sys.executable).parent)


def let_hooks_find_the_runtime() -> None:
    """Let libraries that processes started from here preload find the packages' libcudart: the
    memory saver's hook needs it and does not say where it is."""
    packaged = packaged_toolkit()
    if packaged is not None:
        _prepend("LD_LIBRARY_PATH", packaged / "lib")


def compile_problem() -> str:
    """Why no kernel can be compiled here; empty if one was."""
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        return "g++ is missing: SGLang compiles kernels when a server starts"
    found = toolkit()
    if found is None:
        return "no CUDA compiler: neither CUDA_HOME, nor the lock's packages, nor nvcc on the PATH"
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "kernel.cu").write_text(_KERNEL)
        library = str(Path(folder) / "kernel.so")
        # The two steps of SGLang: its linker is g++, with the toolkit's lib64 and nothing else.
        compiled = [str(found / "bin/nvcc"), "-c", "-Xcompiler", "-fPIC", "kernel.cu", "-o", "k.o"]
        linked = ["g++", "-shared", "k.o", f"-L{found}/lib64", "-lcudart", "-o", library]
        for command in (compiled, linked):
            try:
                done = subprocess.run(
                    command, cwd=folder, capture_output=True, text=True, timeout=COMPILE_S
                )
            except subprocess.TimeoutExpired:
                return f"{command[0]} took more than {COMPILE_S:.0f} s"
            except OSError as error:
                return f"{command[0]} does not run: {error}"
            if done.returncode != 0:
                told = (done.stderr or done.stdout).strip().splitlines()
                return f"{command[0]}: {told[-1] if told else f'exit code {done.returncode}'}"
    return ""


def _linked(packaged: Path) -> Path:
    """A toolkit of links to the packages' folders. Several processes may make it at once."""
    folder = home() / "cuda-toolkit"
    (folder / "lib64").mkdir(parents=True, exist_ok=True)
    for name in ("bin", "include", "nvvm"):
        _link(folder / name, packaged / name)
    for library in sorted(packaged.glob("lib/libcudart.so.*")):
        _link(folder / "lib64/libcudart.so", library)
    return folder


def _link(link: Path, target: Path) -> None:
    if link.is_symlink() and link.readlink() == target:
        return
    new = link.with_name(f".{link.name}.{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        new.unlink()
    new.symlink_to(target)
    new.replace(link)


def _prepend(variable: str, *folders: Path) -> None:
    """Folders in front of a list of folders in the environment, each once."""
    known = [entry for entry in os.environ.get(variable, "").split(os.pathsep) if entry]
    added = [str(folder) for folder in folders]
    os.environ[variable] = os.pathsep.join([*added, *(x for x in known if x not in added)])
