"""Locks: one exact version a line, each with the Pythons that need it. `make lock` resolves
locks/*.toml into locks/*.txt for every supported Python at once.

Versions in a lock are kept if they still fit; delete a line to update that package.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from install.uv import InstallError

ROOT = Path(__file__).resolve().parents[1]
LOCKS = ROOT / "locks"
UV = ROOT / "build/uv/bin/uv"
GROUPS = {"cpu": ["--group", f"{ROOT / 'pyproject.toml'}:dev"], "cuda": []}
HEADS = {
    "cpu": "The CPU environment, exact, for Linux and Python 3.11 to 3.13: made by `make lock` of\n"
    "# pyproject.toml and locks/cpu.toml, installed by `make install` without resolving anything.",
    "cuda": "The CUDA environment, exact, with SGLang's own pins, for Linux x86-64, glibc 2.34 or\n"
    "# newer and Python 3.11 to 3.13: made by `make lock` of pyproject.toml and locks/cuda.toml.",
}
_ALWAYS = (
    "python_full_version < '3.14'",
    "sys_platform == 'linux'",
    "platform_machine == 'x86_64'",
    "platform_python_implementation == 'CPython'",
    "implementation_name != 'PyPy'",
)
"""true wherever a lock is used"""
_TORCH = re.compile(r"torch==([^\s;]+)")


def main() -> None:
    for name in GROUPS:
        with tempfile.TemporaryDirectory() as folder:
            lines = resolve(name, Path(folder))
        (LOCKS / f"{name}.txt").write_text("\n".join([f"# {HEADS[name]}", *lines, ""]))


def resolve(name: str, folder: Path) -> list[str]:
    """uv takes environments and exclusions from the project of the folder that it runs in."""
    shutil.copy(LOCKS / f"{name}.toml", folder / "pyproject.toml")
    shutil.copy(LOCKS / f"{name}.txt", folder / "lock.txt")
    command = [str(UV), "pip", "compile", "--quiet", "--universal", "--python-version", "3.11"]
    how = ["--no-annotate", "--no-header", "--no-emit-index-url", "--output-file", "lock.txt"]
    sources = ["pyproject.toml", str(ROOT / "pyproject.toml"), *GROUPS[name]]
    subprocess.run([*command, *how, *sources], cwd=folder, check=True)
    lines = (folder / "lock.txt").read_text().splitlines()
    return [simplified(line) for line in lines if re.match(r"[A-Za-z]", line)]


def simplified(line: str) -> str:
    """Without the parts of its marker that always hold."""
    package, _, marker = line.partition(" ; ")
    if " or " in marker:  # such as: any of the machines that there are
        return package
    parts = [part for part in marker.split(" and ") if part and part not in _ALWAYS]
    return f"{package} ; {' and '.join(parts)}" if parts else package


class Lock(NamedTuple):
    torch: str
    """the version"""
    without_torch: list[str]
    brings_cuda: bool
    """it lists the libraries that a CUDA build of torch needs"""


def read_lock(path: Path) -> Lock:
    if not path.is_file():
        raise InstallError(f"LOCK={path}: no such file; use locks/cpu.txt or locks/cuda.txt")
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    torch = [found.group(1) for line in lines if (found := _TORCH.match(line))]
    if len(torch) != 1:
        raise InstallError(f"{path} needs one line `torch==VERSION`, and has {len(torch)}")
    others = [line for line in lines if not _TORCH.match(line)]
    return Lock(torch[0], others, any(line.startswith("nvidia-") for line in lines))


if __name__ == "__main__":
    main()
