"""What `tributary doctor` says of one thing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Check:
    """One fact about this machine. Example: Check("python", True, "3.11.7", repair="")"""

    name: str
    ok: bool
    detail: str
    repair: str
    """the command or act that makes it right; empty when it is"""
    warns: bool = False
    """all works, and `detail` is something to know"""
