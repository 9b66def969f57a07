"""The image for tests of sandboxes of the kind `container`: a minimal Debian with Python.

Usage: python -m tests.programs.sandbox_image; prints the image's digest. Where podman and docker do
not run, or `debootstrap` is missing, it prints nothing and says why on standard error: those tests
are skipped then. Needs root. The image stays, and is found again by its name.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from infra.sandbox.kinds.container import runner
from tests.programs.fresh.debian import build

NAME = "localhost/tributary-sandbox-test:1"
LEFT_OUT = ("./var", "./usr/share", "./usr/lib/git-core", "./boot", "./home", "./dev", "./proc")
"""not needed by Python: a storage driver without layers copies the image for every container"""


def main() -> int:
    program, why = runner()
    if not why and (found := _digest(program)):
        print(found)
        return 0
    if not why and shutil.which("debootstrap") is None:
        why = "`debootstrap` is not installed"
    if not why and os.geteuid() != 0:
        why = "only root can build a Debian"
    if why:
        print(f"no image for sandboxes of the kind `container`: {why}", file=sys.stderr)
        return 0
    with tempfile.TemporaryDirectory(prefix="sandbox-image-") as folder:
        _import(program, build(Path(folder) / "debian", told=sys.stderr))
    print(_digest(program))
    return 0


def _import(program: str, debian: Path) -> None:
    excluded = [f"--exclude={path}" for path in LEFT_OUT]
    with subprocess.Popen(
        ["tar", "-C", str(debian), *excluded, "-c", "."], stdout=subprocess.PIPE
    ) as tar:
        command = [program, "import", "-", NAME]
        subprocess.run(command, stdin=tar.stdout, stdout=subprocess.DEVNULL, check=True)


def _digest(program: str) -> str:
    """Its id, e.g. "sha256:98e6..."; empty if there is no such image."""
    command = [program, "image", "inspect", "--format", "{{.Id}}", NAME]
    told = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return f"sha256:{told.removeprefix('sha256:')}" if told else ""


if __name__ == "__main__":
    sys.exit(main())
