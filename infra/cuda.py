"""Whether this host computes on NVIDIA GPUs: the one answer for everything that depends on it."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path

from infra.home import home
from infra.secret_references import ask_program

_DRIVER = Path("/proc/driver/nvidia")
_ASK_S = 10.0
_NCCL = ("NCCL_CUMEM_ENABLE", "NCCL_NVLS_ENABLE")
"""what SGLang turns off in its servers: members of one group must agree on them"""

_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""torch's own variable, and its older name, which it reads where the other is not set"""
_EXACT_PINNED = "pinned_max_round_threshold_mb:1"
COMPILE_S = 120.0
"""what compiling the smallest kernel may take on a crowded machine"""
_SYSTEM = Path("/usr/local/cuda")
_KERNEL = """
#include <cuda_runtime.h>
__global__ void add_one(float* x) { x[threadIdx.x] += 1.0f; }
extern "C" int run(float* x) { add_one<<<1, 32>>>(x); return (int)cudaGetLastError(); }
"""


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """What torch says of itself, which a lock and a version's tag may not know."""

    version: str
    cuda: str | None
    """the CUDA version that it was built for; None: a CPU build"""
    sees_gpu: bool


@functools.cache
def has_cuda() -> bool:
    """Return whether an NVIDIA device is usable; answers without importing torch.

    CUDA_VISIBLE_DEVICES set to nothing (or -1) makes a host count as one without.
    """
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "0") in ("", "-1")
    return not hidden and (_DRIVER / "version").exists()


def has_driver_library() -> bool:
    """Return whether the driver's library can be loaded, which some packages want when imported."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def nccl_environment() -> dict[str, str]:
    """Variables that ranks and servers need alike, or their groups do not come to be; a value that
    a person set for the stack stays, on both sides."""
    return {name: os.environ.get(name, "0") for name in _NCCL}


def allocator_environment() -> dict[str, str]:
    """Variables for a rank's process: torch would round each pinned block up to a power of two, and
    nearly twice a model's state could wait in host memory. Settings of a person stay."""
    name = next((name for name in _ALLOCATOR if os.environ.get(name)), _ALLOCATOR[0])
    theirs = os.environ.get(name, "")
    if _EXACT_PINNED.partition(":")[0] in theirs:
        return {}
    return {name: ",".join(filter(None, (theirs, _EXACT_PINNED)))}


def gpu_name() -> str:
    """The maker's name of the host's first GPU, as its driver tells it; empty without one."""
    for file in sorted(_DRIVER.glob("gpus/*/information"))[:1]:
        for line in file.read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "Model":
                return value.strip()
    return ""


@functools.cache
def gpu_sizes() -> tuple[int, ...]:
    """Memory in bytes of each GPU that this process may use; empty if it is not known.

    Asks the driver's own tool, which takes no memory of the devices.
    """
    if not has_cuda():
        return ()
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    only = ["-i", chosen] if chosen else []
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits", *only]
    try:
        done = ask_program(command, _ASK_S)
        done.check_returncode()
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(int(line) << 20 for line in done.stdout.split() if line.isdigit())


def gpu_uuid(number: int) -> str:
    """The name of this process's GPU of that number, as torch writes it; empty if it is not known.

    Example: "6dd0a9c2-3f5c-1e65-8d2a-0b9c61a7f7d4". Asks the driver's own tool: a process that only
    wants to know must not take memory of the device.
    """
    return _asked(number, "uuid").removeprefix("GPU-")


def used_bytes(number: int) -> int:
    """Return what all processes together hold of this process's GPU of that number; 0 if not
    known."""
    text = _asked(number, "memory.used")
    return int(text) << 20 if text.isdigit() else 0


def _asked(number: int, what: str) -> str:
    """Return what the driver's own tool says of a GPU, without units; empty if it cannot."""
    names = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    name = names[number] if number < len(names) and names[number] else str(number)
    command = ["nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader,nounits", "-i", name]
    try:
        done = ask_program(command, _ASK_S)
        done.check_returncode()
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def torch_build() -> TorchBuild:
    """Imports torch."""
    import torch

    return TorchBuild(torch.__version__, torch.version.cuda, torch.cuda.is_available())


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
    if problem := launcher_problem():
        return problem
    found = toolkit()
    if found is None:
        return "no CUDA compiler: neither CUDA_HOME, nor the lock's packages, nor nvcc on the PATH"
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "kernel.cu").write_text(_KERNEL)
        library = str(Path(folder) / "kernel.so")
        # The two steps of SGLang: its linker is g++, with the toolkit's lib64 and nothing else.
        # FlashInfer's kernels, for attention and for `top_p`, are linked to the driver as well.
        driver = [f"-L{found}/lib64/stubs", "-lcuda"] if has_cuda() else []
        compiled = [str(found / "bin/nvcc"), "-c", "-Xcompiler", "-fPIC", "kernel.cu", "-o", "k.o"]
        linked = ["g++", "-shared", "k.o", f"-L{found}/lib64", "-lcudart", *driver, "-o", library]
        for command in (compiled, linked):
            try:
                done = ask_program(command, COMPILE_S, folder)
            except subprocess.TimeoutExpired:
                return f"{command[0]} took more than {COMPILE_S:.0f} s"
            except OSError as error:
                return f"{command[0]} does not run: {error}"
            if done.returncode != 0:
                told = (done.stderr or done.stdout).strip().splitlines()
                told = [line for line in told if "cannot find" in line] or told[-1:]
                return f"{command[0]}: {told[0] if told else f'exit code {done.returncode}'}"
    return ""


def launcher_problem() -> str:
    """Why Triton cannot compile the part of it that starts kernels; empty if it can. It does so in
    each environment once, at the first kernel of a rank or a server."""
    if not any(map(shutil.which, (os.environ.get("CC", "gcc"), "clang"))):
        return "gcc is missing: Triton compiles what starts its kernels"
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        return "Python.h is missing: Triton compiles what starts its kernels"
    return ""


def _linked(packaged: Path) -> Path:
    """Return a toolkit of links to the packages' folders. Several processes may make it at once."""
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
