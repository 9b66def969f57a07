"""A recipe with its trainer and its server on this host's GPU, through the command line."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.programs.bench.rows import Row

RUN_S = 1_500
RECIPE = Path(__file__).with_name("recipe.yaml")


def recipe() -> list[Row]:
    """`up`, `run`, `report`, `down`, in a home of its own."""
    home = Path(tempfile.mkdtemp(prefix="tr-"))  # socket paths are at most 107 bytes long
    environment = os.environ | {"TRIBUTARY_HOME": str(home)}
    command = str(Path(sys.executable).parent / "tributary")

    def call(*arguments: str) -> str:
        done = subprocess.run(
            [command, *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=RUN_S,
        )
        return done.stdout

    try:
        call("up")
        began = time.monotonic()
        call("run", str(RECIPE), "--name", "gpu")
        seconds = time.monotonic() - began
        report = json.loads(call("report", "gpu", "--json"))
    finally:
        subprocess.run([command, "down"], env=environment, check=False, timeout=RUN_S)
        shutil.rmtree(home, ignore_errors=True)
    completed = float(report["state"] == "completed")
    stages = len(report["stages"])
    return [
        Row(
            "a recipe on the GPU",
            completed,
            "completed",
            1.0,
            note=f"{stages} stages, {seconds:.0f} s",
        )
    ]
