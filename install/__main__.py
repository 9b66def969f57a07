"""`make install`: uv, an environment, the packages of a lock, torch, the project itself."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from install.environment import create_environment, put_launcher
from install.lock import read_lock
from install.pip_settings import pip_options, settings_for_uv
from install.torch_sources import install_torch
from install.uv import InstallError, Uv, bootstrap_uv

PACKAGES = ("flows", "tasks", "engines", "rewards", "curricula", "infra")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m install", description=__doc__)
    parser.add_argument("--lock", type=Path, default=Path("locks/cpu.txt"))
    parser.add_argument("--venv", type=Path, default=Path(".venv"))
    written = parser.parse_args()
    try:
        install(written.lock, written.venv)
    except InstallError as error:
        print(f"install: {error}", file=sys.stderr)
        return 2
    return 0


def install(lock: Path, venv: Path) -> None:
    pins = read_lock(lock)
    # From here on every uv command has what pip was told; what uv itself was told goes first.
    os.environ.update(settings_for_uv(pip_options(), os.environ))
    binary = bootstrap_uv(Path("build/uv"))
    python = create_environment(binary, venv)
    uv = Uv(binary, python)
    if pins.brings_cuda:
        uv.install("--no-deps", "-r", str(lock))
        say(f"torch {pins.torch} with the CUDA libraries of {lock}")
    else:
        # Exact, so nothing is resolved: SGLang pins a CUDA stack that a CPU does not need.
        others = "\n".join(pins.without_torch)
        uv.install("--no-deps", "-r", "-", typed=others)
        say(install_torch(uv, pins.torch))
    uv.install("--no-deps", "-e", ".")
    # A stack may import them as a user who may not write here.
    uv.python_runs("-m", "compileall", "-q", *PACKAGES)
    say(put_launcher(venv / "bin" / "tributary", os.environ))


def say(line: str) -> None:
    print(f"install: {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
