"""A stub of the driver's library: all that the lock's libraries want of it, and no device."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_NAME = b"libcuda.so.1"
_NO_DEVICE = 100
"""CUDA_ERROR_NO_DEVICE, whatever is asked"""
_ALWAYS = {"cuInit", "cuDriverGetVersion", "cuDeviceGetCount"}
"""what libraries look up by name instead of linking to it"""


def main(venv: Path, library: Path) -> None:
    users = list(libraries_with(venv, _NAME))
    wanted = sorted(_ALWAYS.union(*map(_undefined, users)))
    library.parent.mkdir(parents=True, exist_ok=True)
    source = library.with_name("libcuda.c")
    source.write_text("".join(f"int {name}(void) {{ return {_NO_DEVICE}; }}\n" for name in wanted))
    compiled = ["gcc", "-shared", "-fPIC", "-w", f"-Wl,-soname,{library.name}", "-o", str(library)]
    subprocess.run([*compiled, str(source)], check=True)
    print(f"{len(wanted)} functions for {len(users)} libraries")


def libraries_with(venv: Path, text: bytes) -> Iterator[Path]:
    for file in sorted(venv.glob("lib/python3*/site-packages/**/*.so*")):
        if file.is_file() and text in file.read_bytes():
            yield file


def _undefined(library: Path) -> set[str]:
    """Names of the driver's interface that a library does not define itself."""
    listed = ["nm", "-D", "--undefined-only", str(library)]
    done = subprocess.run(listed, capture_output=True, text=True)
    return set(re.findall(r" U (cu[A-Z]\w+)$", done.stdout, re.M))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
