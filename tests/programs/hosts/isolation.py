"""Namespaces for a whole program: its network, mounts and processes are nobody else's.

What it adds to the network is not seen outside, may be added by several programs at once, and is
gone with it however it ends. Without root it needs a kernel that lets users make namespaces.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

_INSIDE = "TRIBUTARY_HOSTS_INSIDE"
_OWN = ("--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
_TRY_S = 10.0
_SET_UP = (
    ("mount", "-t", "tmpfs", "tmpfs", "/run"),  # where `ip` keeps names of namespaces
    ("ip", "link", "set", "lo", "up"),
)


def enter(module: str, arguments: Sequence[str]) -> None:
    """Begin `python -m module arguments` again in namespaces of its own; returns there."""
    if os.environ.pop(_INSIDE, ""):
        for command in _SET_UP:
            subprocess.run(command, check=True)
        return
    if missing := missing_for_hosts():
        sys.exit(f"hosts that are namespaces cannot be made: {missing}")
    again = [sys.executable, "-m", module, *arguments]
    os.execvpe("unshare", [*_unshare(), *again], os.environ | {_INSIDE: "1"})


def missing_for_hosts() -> str:
    """Why there can be no namespaces here; empty when there can."""
    for program in ("unshare", "nsenter", "ip", "mount"):
        if shutil.which(program) is None:
            return f"the program `{program}` is missing (Debian: util-linux, mount, iproute2)"
    script = " && ".join(" ".join(command) for command in _SET_UP)
    script += " && ip link add tried type veth peer name other && ip netns add tried"
    tried = subprocess.run(
        [*_unshare(), "sh", "-ec", script], capture_output=True, text=True, check=False,
        timeout=_TRY_S,
    )  # fmt: skip
    return tried.stderr.strip() if tried.returncode else ""


def _unshare() -> list[str]:
    as_root = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    return ["unshare", *as_root, *_OWN]
