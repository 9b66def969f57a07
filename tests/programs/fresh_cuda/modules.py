"""Imports every module of ours, or with `servers` what SGLang's servers consist of on a GPU."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Sequence

from engines.sglang.servers.server_launcher import PRELOADED
from install.__main__ import PACKAGES
from tests.programs.fresh_cuda.steps import ROOT

ON_GPU = (
    "flashinfer",
    "sgl_kernel",
    "torch_memory_saver",
    "triton",
    "sglang.srt.layers.attention.flashattention_backend",
    "sglang.srt.layers.attention.flashinfer_backend",
    "sglang.srt.layers.attention.triton_backend",
    "sglang.srt.layers.sampler",
    "sglang.srt.managers.tp_worker",
    "sglang.srt.model_executor.runner.decode_cuda_graph_runner",
)
"""what a server imports beside `PRELOADED` where it finds a GPU"""
_OPTIONAL = {"inspect_ai", "my_domain", "my_environment", "my_reward"}
"""packages that people add: a library of tasks, and what a starter's test is about"""


def main(wanted: Sequence[str]) -> int:
    if wanted == ["servers"]:
        from engines.sglang.servers.server_launcher import prepare

        prepare()
        names = [*PRELOADED, *ON_GPU]
    else:
        names = own_modules()
    failed = [name for name in names if not _imports(name)]
    print(f"{len(names) - len(failed)} of {len(names)} modules were imported; failed:", *failed)
    return 1 if failed else 0


def own_modules() -> list[str]:
    files = (file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py")))
    names = (".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files)
    return [name.removesuffix(".__init__") for name in names if not name.endswith("__main__")]


def _imports(name: str) -> bool:
    try:
        importlib.import_module(name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name in _OPTIONAL:
            print(f"{name}: not imported, without {error.name}")
            return True
        print(f"{name}:")
        traceback.print_exc(file=sys.stdout)
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
