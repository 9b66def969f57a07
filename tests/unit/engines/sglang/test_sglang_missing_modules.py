"""Stand-ins for modules that a host without CUDA lacks."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit
HAS_TRITON = find_spec("triton") is not None
without_triton = pytest.mark.skipif(HAS_TRITON, reason="nothing stands in for what is installed")


def _run(code: str, *paths: Path) -> str:
    """What a fresh interpreter prints; `paths` come first on its module path."""
    head = f"import sys; sys.path[:0] = {[str(path) for path in paths]}\n"
    done = subprocess.run(
        [sys.executable, "-c", head + code], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.strip()


def test_a_real_module_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "sgl_kernel.py").write_text("real = True\n")
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text("real = True\n")
    code = (
        "from engines.sglang.cpu import missing_modules\n"
        "finder = missing_modules.install()\n"
        "import sgl_kernel, torchvision\n"
        "print(sgl_kernel.real, torchvision.real, finder.roots)"
    )
    assert _run(code, tmp_path) == f"True True {() if HAS_TRITON else ('triton',)}"


@without_triton
def test_stand_ins_survive_what_sglang_does_at_import_and_raise_where_they_are_called() -> None:
    code = """
from engines.sglang.cpu import missing_modules
assert missing_modules.install() is missing_modules.install()
import triton, triton.language as tl
from triton.runtime.jit import KernelInterface
from torchvision.transforms import Compose
@triton.jit
def plain(x: tl.constexpr): return 1
@triton.autotune(configs=[triton.Config({}, num_warps=4)], key=["x"])
@triton.jit(debug=True)
def tuned(x): return 2
class Mine(Compose): pass
print(plain(0), tuned(0), isinstance(Mine(), Compose))
import sgl_kernel
try: sgl_kernel.rotate_input_ids_cpu()
except NotImplementedError as error: print("rotate_input_ids_cpu" in str(error))
print(hasattr(sgl_kernel, "top_k_renorm_prob"))
try: import sgl_kernel.flash_attn
except ImportError: print("no submodule")
from torch.utils._triton import has_triton_package
print("for torch it is there:", has_triton_package())
"""
    kernels = ["True", "False", "no submodule"]
    assert _run(code).split("\n") == ["1 2 True", *kernels, "for torch it is there: False"]


def test_nothing_of_the_cpu_part_applies_where_cuda_is() -> None:
    code = """
import sys, types
from engines.sglang import plugin, prefix_cache, routed_batch
from engines.sglang.servers import host, server_hooks
host.has_cuda = plugin.has_cuda = lambda: True
routed_batch.install = lambda: print("install")
prefix_cache.install_shared_prompts = lambda: print("install_shared_prompts")
for name in [name for name in vars(server_hooks) if name.startswith("install_")]:
    setattr(server_hooks, name, lambda name=name: print(name))
plugin.register()
host.prepare_environment()
import os
print(plugin.is_registered(), "torch" in sys.modules, "SGLANG_USE_CPU_ENGINE" in os.environ)
"""
    others = ("rendezvous", "shared_names", "mapped_weights", "fp8_folders")
    hooks = ("shared_prompts", "model_names", *others)
    parts = ["install", *(f"install_{name}" for name in hooks)]
    assert _run(code).split("\n") == [*parts, "True False False"]


def test_a_router_starts_without_the_balancer_for_tests_and_what_that_imports() -> None:
    code = (
        "from engines.sglang.servers.router_main import main\n"
        "try:\n    main(['--mini-lb'])\n"
        "except ValueError as error:\n    print('leave the option out' in str(error))\n"
        "print([name for name in ('torch', 'sglang', 'fastapi') if name in sys.modules])"
    )
    assert _run(code) == "True\n[]"


def test_a_server_s_processes_get_their_titles_after_a_change_of_the_first_variable() -> None:
    code = (
        "import os; from pathlib import Path\n"
        "from engines.sglang.servers.server_launcher import keep_place_of_title\n"
        "first = Path('/proc/self/environ').read_bytes().partition(b'=')[0].decode()\n"
        "before = Path('/proc/self/comm').read_text(); keep_place_of_title()\n"
        "assert Path('/proc/self/comm').read_text() == before\n"
        "os.environ[first] = 'changed'\n"
        "import setproctitle; setproctitle.setproctitle('sglang::scheduler')\n"
        "print(Path('/proc/self/cmdline').read_text().strip('\\0 '))\n"
    )
    assert _run(code) == "sglang::scheduler"
