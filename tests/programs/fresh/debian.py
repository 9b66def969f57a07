"""A minimal Debian in a folder, from the mirror that the host's apt uses."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TextIO

SUITE = "bookworm"
PACKAGES = "python3,python3-venv,make,git,ca-certificates"
APT = Path("/etc/apt")
ALONE = (
    "setpriv", "--pdeathsig", "KILL", "--",
    "unshare", "--mount", "--pid", "--fork", "--kill-child", "--",
)  # fmt: skip
"""Mounts and processes in namespaces of their own, which end with this process, however it ends"""


def build(folder: Path, told: TextIO = sys.stdout) -> Path:
    """What `debootstrap` makes of the suite: no compiler, no pip, no headers."""
    command = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, str(folder)]
    print(f"building a minimal Debian ({SUITE}) ...", flush=True, file=told)
    done = subprocess.run(
        [*ALONE, *command, mirror(APT)], capture_output=True, text=True, env=os.environ | _proxy()
    )
    if done.returncode != 0:
        raise SystemExit(f"debootstrap failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return folder


def copy(base: Path, folder: Path) -> None:
    subprocess.run(["cp", "--archive", "--reflink=auto", str(base), str(folder)], check=True)


def mirror(apt: Path) -> str:
    """The first address whose apt source offers the suite; Debian's own without one."""
    files = [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*"))]
    for file in files:
        for stanza in _stanzas(file):
            if found := _offers_suite(stanza):
                return found
    return "http://deb.debian.org/debian"


def _stanzas(file: Path) -> list[str]:
    if not file.is_file():
        return []
    text = "\n".join(line for line in file.read_text().splitlines() if not line.startswith("#"))
    return text.split("\n\n") if file.suffix == ".sources" else text.splitlines()


def _offers_suite(stanza: str) -> str:
    """One paragraph of a `.sources` file, or one line of `sources.list`."""
    uris = re.search(r"^URIs:\s*(\S+)", stanza, re.MULTILINE)
    suites = re.search(r"^Suites:\s*(.*)", stanza, re.MULTILINE)
    if uris and suites:
        return uris.group(1) if SUITE in suites.group(1).split() else ""
    line = re.match(r"deb\s+(?:\[[^]]*\]\s+)?(\S+)\s+(\S+)", stanza)
    return line.group(1) if line and line.group(2) == SUITE else ""


def _proxy() -> dict[str, str]:
    asked = ["apt-config", "shell", "found", "Acquire::http::Proxy"]
    told = subprocess.run(asked, capture_output=True, text=True).stdout
    address = re.search(r"found='([^']+)'", told)
    return {"http_proxy": address.group(1)} if address else {}
