"""`tributary doctor` on what is installed: the interpreter, the lock, torch and the engines."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import platform
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

from infra.cuda import TorchBuild, compile_problem, has_cuda
from infra.home import SOURCE_ROOT
from infra.secret_references import ask_program

PYTHONS = ("3.11", "3.12", "3.13")
_CPU_LOCK, _CUDA_LOCK = "cpu.txt", "cuda.txt"
TORCH_LOADS_S = 180.0
"""bound for importing torch in a process of its own, on a cold and crowded disk"""
_ASK_TORCH = """
import dataclasses, json
from infra.cuda import torch_build
print(json.dumps(dataclasses.asdict(torch_build())))
"""


@dataclass(frozen=True, slots=True)
class Check:
    """One fact about this machine. Example: Check("python", True, "3.11.7", repair="")"""

    name: str
    ok: bool
    detail: str
    repair: str
    """the command or act that makes it right; empty when it is"""
    warns: bool = False
    """all works, and `detail` is something to know"""


def python_version() -> Check:
    version = platform.python_version()
    ok = version.rpartition(".")[0] in PYTHONS
    repair = "" if ok else f"`make clean install PYTHON=...` ({PYTHONS[0]} to {PYTHONS[-1]})"
    return Check("python", ok, version, repair)


def packages() -> Check:
    """Check every package of the lock that was installed, in the version that the lock has."""
    lock = installed_lock()
    if not lock.exists():
        return Check("packages", True, "no lock beside the code: an installed wheel", "")
    pins = lock_pins(lock.read_text())
    wrong = [f"{name} {found or 'missing'}, not {pin}" for name, pin in pins.items()
             if _public(found := _installed(name)) != _public(pin)]  # fmt: skip
    if not wrong:
        return Check("packages", True, f"{len(pins)} as in {lock.name}", "")
    told = "; ".join(wrong[:5]) + (f"; and {len(wrong) - 5} more" if len(wrong) > 5 else "")
    return Check("packages", False, told, _reinstall(lock))


def kernels() -> Check:
    """Return whether what SGLang compiles on a GPU can be compiled: it has no other way."""
    if not has_cuda() and installed_lock().name == _CPU_LOCK:
        return Check("kernels", True, "nothing is compiled on a CPU", "")
    problem = compile_problem()
    if not problem:
        return Check("kernels", True, "one compiled for the GPU", "")
    repairs = (repair for found, repair in _REPAIRS.items() if re.search(found, problem))
    return Check("kernels", False, problem, next(repairs, _reinstall()))


_REPAIRS = {
    r"-lcuda\b": "let the linker find the driver's library: a link libcuda.so beside libcuda.so.1",
    "is missing": "install g++ and Python's headers (Debian: `apt-get install g++ python3-dev`)",
}
"""by a pattern of the problem; any other one is repaired by a new installation"""


def torch_build() -> Check:
    """Return what torch itself says when it is loaded: the lock and its tag may say otherwise."""
    if not _installed("torch"):
        return Check("torch", False, "missing", _reinstall())
    asked = [sys.executable, "-c", _ASK_TORCH]
    try:
        done = ask_program(asked, TORCH_LOADS_S)
    except subprocess.TimeoutExpired:
        return Check("torch", False, f"not loaded within {TORCH_LOADS_S:.0f} s", "see the machine")
    if done.returncode != 0:
        told = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return Check("torch", False, f"{_installed('torch')} does not load: {told}", _reinstall())
    found = TorchBuild(**json.loads(done.stdout.splitlines()[-1]))
    return judge_torch(found, has_gpu=has_cuda())


def judge_torch(found: TorchBuild, *, has_gpu: bool) -> Check:
    told = f"{found.version}, built for {f'CUDA {found.cuda}' if found.cuda else 'CPU'}"
    if not has_gpu:
        return Check("torch", True, f"{told}, on the CPU" if found.cuda else told, "")
    if not found.cuda:
        return Check("torch", False, f"{told}, on a machine with an NVIDIA GPU", _reinstall())
    if not found.sees_gpu:
        repair = f"a driver for CUDA {found.cuda}, or unset CUDA_VISIBLE_DEVICES"
        return Check("torch", False, f"{told}, but it sees no GPU", repair)
    return Check("torch", True, f"{told}, with a GPU", "")


def engines() -> Check:
    names = ("megatron.core", "sglang", "sglang_router", "ray", "prefect", "mlflow")
    missing = [name for name in names if not _is_importable(name)]
    told = f"missing: {', '.join(missing)}" if missing else ", ".join(names)
    return Check("engines", not missing, told, _reinstall() if missing else "")


def lock_pins(text: str) -> dict[str, str]:
    """Package to version, of the lines whose marker holds for this Python and machine."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    wanted = [Requirement(line) for line in lines]
    return {
        one.name: str(one.specifier).removeprefix("==")
        for one in wanted
        if one.marker is None or one.marker.evaluate()
    }


def installed_lock() -> Path:
    """The lock whose packages are here, whatever this host has: the one for GPUs also works where
    there is none. A torch that was built for CUDA brings some of its packages to the other lock."""
    locks = SOURCE_ROOT / "locks"
    cpu, cuda = locks / _CPU_LOCK, locks / _CUDA_LOCK
    if not (cpu.exists() and cuda.exists()):
        return cuda if has_cuda() else cpu
    only_cuda = lock_pins(cuda.read_text()).keys() - lock_pins(cpu.read_text()).keys()
    here = [name for name in only_cuda if _installed(name)]
    return cuda if 2 * len(here) > len(only_cuda) else cpu


def _reinstall(lock: Path | None = None) -> str:
    """By default the lock that this host needs."""
    name = lock.name if lock else (_CUDA_LOCK if has_cuda() else _CPU_LOCK)
    return f"`make clean install LOCK=locks/{name}`"


def _installed(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _public(version: str) -> str:
    """Without a local tag: the `+cpu` of 2.13.0+cpu tells how it was built and not what it is."""
    return version.partition("+")[0]


def _is_importable(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False
