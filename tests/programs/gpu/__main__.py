"""`make gpu`: what one CUDA device shows of the engines, printed and written to `build/gpu.json`.

Usage: python -m tests.programs.gpu [PART...]. Each part runs in a process of its own, so that its
memory is its own. All but `recipe` need torch, megatron-core, numpy, pydantic, safetensors, psutil
and rich, and neither Ray nor SGLang: they run where nothing else is installed. Without a GPU the
parts that a CPU can show run on a tiny model, and the others are named with the reason. Exit 1 if a
row does not hold, or a part fails.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

from infra.cuda import gpu_name, has_cuda
from tests.programs.bench.rows import Row, show, write

BUILD = Path("build")
PART_S = 1_800
_HERE = "tests.programs.gpu"


@dataclass(frozen=True, slots=True)
class Part:
    """Rows that are measured together, by `module.function`."""

    function: str
    needs_gpu: bool = False
    packages: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.function.replace(".measure", "").rpartition(".")[2].replace("_", "-")

    def why_not(self) -> str:
        """Why it cannot run here; empty if it can."""
        missing = [package for package in self.packages if find_spec(package) is None]
        if self.needs_gpu and not has_cuda():
            return "this host has no GPU"
        return f"not installed: {', '.join(missing)}" if missing else ""


PARTS = (
    Part("parity.measure", needs_gpu=True),
    Part("training.scoring"),
    Part("training.low_precision"),
    Part("kernels.packed_attention"),
    Part("kernels.fused_loss"),
    Part("training.recomputation"),
    Part("training.speed"),
    Part("training.saving"),
    Part("training.sleeping"),
    Part("device_memory.publish", needs_gpu=True),
    Part("whole_recipe.recipe", needs_gpu=True, packages=("ray", "sglang", "prefect", "mlflow")),
)


def main(wanted: Sequence[str]) -> int:
    unknown = set(wanted) - {part.name for part in PARTS}
    if unknown:
        print("no such part:", *sorted(unknown), "; there are:", *(p.name for p in PARTS))
        return 2
    rows: list[Row] = []
    failed = False
    for part in PARTS:
        if wanted and part.name not in wanted:
            continue
        if why := part.why_not():
            print(f"{part.name}: not run: {why}", flush=True)
            continue
        found = _in_a_process(part)
        failed |= found is None
        rows += found or []
        for row in found or []:
            print(f"{row.name}: {row.value:.4g} {row.unit} ({row.bound})", flush=True)
    show(rows, gpu_name() or "without a GPU")
    write(rows, BUILD / "gpu.json")
    return 0 if not failed and all(row.holds for row in rows) else 1


def _in_a_process(part: Part) -> list[Row] | None:
    """None if it fails; it has said why."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [sys.executable, "-m", _HERE, "--measure", part.function, file.name]
        try:
            subprocess.run(command, check=True, timeout=PART_S)
        except subprocess.SubprocessError as error:
            print(f"{part.name}: FAILED: {error}", flush=True)
            return None
        return [Row(**fields) for fields in json.load(file)]


def _measure(function: str, file: str) -> int:
    module, _, name = function.rpartition(".")
    rows = getattr(importlib.import_module(f"{_HERE}.{module}"), name)()
    Path(file).write_text(json.dumps([asdict(row) for row in rows]))
    return 0


if __name__ == "__main__":
    given = sys.argv[1:]
    sys.exit(_measure(*given[1:]) if given[:1] == ["--measure"] else main(given))
