"""`make gpu`: what one CUDA device shows of the engines, printed and written to `build/gpu.json`.

Usage: python -m tests.programs.gpu [PART...]. Each part runs in a process of its own, so that its
memory is its own, and within its own time. All of them together end within 9.5 minutes, those that
decide most first: a part that has no time left is named, and so is one that was cut off. What was
found so far is in the file after each part, and in a table also when the program is ended. The
parts that are named on the command line have all the time that they want.

`recipe` needs Ray, SGLang, Prefect and MLflow, `agreement` and `rounding` need transformers, and
`memory-saver` needs torch_memory_saver. The others need torch, megatron-core, numpy, pydantic,
safetensors, psutil and rich: they run where nothing else is installed. Without a GPU the parts
that a CPU can show run on a tiny model, and the others are named with the reason. Exit 1 if a row
does not hold, or a part fails, was cut off or had no time.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

from infra.cuda import allocator_environment, gpu_name, has_cuda
from tests.programs.bench.rows import Row, show, write

BUILD = Path("build")
TOGETHER_S = 570
"""a lent GPU's command ends after ten minutes"""
PART_S = 1_800
"""of a part that is asked for by name"""
_LEAST_S = 10
"""in which no part is done: it is not begun"""
_HERE = "tests.programs.gpu"


@dataclass(frozen=True, slots=True)
class Part:
    """Rows that are measured together, by `module.function`."""

    function: str
    seconds: int = 60
    """on one H100 at most, beside the others; an estimate: none was at hand"""
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
    Part("host_facts.facts", 45, needs_gpu=True),
    Part("parity.measure", 90),
    Part("kernels.packed_attention", 45),
    Part("kernels.fused_kernels", 90),
    Part("training.low_precision"),
    Part("engine_agreement.agreement", 90, packages=("transformers",)),
    Part("device_memory.open_bucket", 45, needs_gpu=True),
    Part("publishing.publishes", 60),
    Part("publishing.broadcasts", 45),
    Part("host_facts.memory_saver", 30, needs_gpu=True, packages=("torch_memory_saver",)),
    Part("training.sleeping", 45),
    Part("training.speed", 90),
    Part("training.wide_speed", 90, needs_gpu=True),
    Part("training.memory", 60),
    Part("engine_agreement.learning_curves", 60),
    Part("engine_agreement.rounding", 60, packages=("transformers",)),
    Part("kernels.fused_loss", 45),
    Part("training.saving"),
    Part("training.scoring", 45),
    Part("publishing.host_memory", 45),
    Part("training.recomputation", 90),
    Part(
        "whole_recipe.recipe", 300, needs_gpu=True, packages=("ray", "sglang", "prefect", "mlflow")
    ),
)
"""those that decide most first"""


def main(wanted: Sequence[str]) -> int:
    unknown = set(wanted) - {part.name for part in PARTS}
    if unknown:
        print("no such part:", *sorted(unknown), "; there are:", *(p.name for p in PARTS))
        return 2
    rows: list[Row] = []
    failed = False
    signal.signal(signal.SIGTERM, _interrupt)
    ends = time.monotonic() + TOGETHER_S
    try:
        for part in PARTS:
            if wanted and part.name not in wanted:
                continue
            if why := part.why_not():
                print(f"{part.name}: not run: {why}", flush=True)
                continue
            within_s = PART_S if wanted else min(part.seconds, ends - time.monotonic())
            found = _in_a_process(part, within_s)
            failed |= found is None
            rows += found or []
            write(rows, BUILD / "gpu.json")  # what comes later may be cut off
            for row in found or []:
                print(f"{row.name}: {row.value:.4g} {row.unit} ({row.bound})", flush=True)
    except KeyboardInterrupt:
        failed = True
        print("ended before its last part", flush=True)
    show(rows, gpu_name() or "without a GPU")
    return 0 if not failed and all(row.holds for row in rows) else 1


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _in_a_process(part: Part, within_s: float) -> list[Row] | None:
    """None if it fails; it has said why."""
    if within_s < _LEAST_S:
        print(f"{part.name}: NOT RUN: no time is left; run it by its name", flush=True)
        return None
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [sys.executable, *_measuring(part, file.name)]
        environment = os.environ | allocator_environment()  # as a rank of a stage has it
        began = time.monotonic()
        try:
            subprocess.run(command, env=environment, check=True, timeout=within_s)
        except subprocess.TimeoutExpired:
            print(f"{part.name}: CUT OFF after {within_s:.0f} s; run it by its name", flush=True)
            return None
        except subprocess.SubprocessError as error:
            print(f"{part.name}: FAILED: {error}", flush=True)
            return None
        print(f"{part.name}: {time.monotonic() - began:.0f} s", flush=True)
        return [Row(**fields) for fields in json.load(file)]


def _measuring(part: Part, file: str) -> list[str]:
    return ["-m", _HERE, "--measure", part.function, file]


def _measure(function: str, file: str) -> int:
    module, _, name = function.rpartition(".")
    rows = getattr(importlib.import_module(f"{_HERE}.{module}"), name)()
    Path(file).write_text(json.dumps([asdict(row) for row in rows]))
    return 0


if __name__ == "__main__":
    given = sys.argv[1:]
    sys.exit(_measure(*given[1:]) if given[:1] == ["--measure"] else main(given))
