"""Compiles a kernel that SGLang needs at its start, as servers do it, with the lock's toolkit."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from infra.cuda import toolkit, use_toolkit

HOPPER = (9, 0, "a")
"""compute capability 9.0 with what only that chip has: no GPU here says what to compile for"""


def main() -> None:
    found = toolkit()
    nvcc = (found / "bin/nvcc").resolve() if found else Path()
    if not nvcc.is_relative_to(Path(sys.prefix).resolve()):
        sys.exit(f"kernels would be compiled by {nvcc}, which is not of the lock's packages")
    use_toolkit()
    began = time.monotonic()
    library = Path(_compiled())
    print(f"{nvcc} compiled {library} in {time.monotonic() - began:.0f} s")
    if b"libcudart.so.13" not in library.read_bytes():
        sys.exit(f"{library} is not linked with the lock's libcudart")


def _compiled() -> str:
    """The library of SGLang's SwiGLU, compiled now; it has been loaded, too."""
    import torch
    from sglang.kernels.jit.utils import arch
    from sglang.kernels.ops.activation import activation

    before = _libraries()
    jit: Any = arch
    with jit.override_jit_cuda_arch(*HOPPER):
        activation.activation_module(torch.bfloat16)
    made = _libraries() - before
    if not made:
        sys.exit("SGLang compiled nothing: its cache of kernels had it, or lies elsewhere")
    return str(made.pop())


def _libraries() -> set[Path]:
    from sglang.srt.environ import envs

    return set(Path(str(envs.SGLANG_JIT_CACHE_DIR.get())).rglob("*.so"))


if __name__ == "__main__":
    main()
