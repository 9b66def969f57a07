"""What a program may use in a sandbox, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Limits:
    """What one run may use."""

    seconds: float = 5.0
    """wall clock"""
    cpu_seconds: int = 5
    memory: int = 256 << 20
    """bytes of address space of one process"""
    resident: int = 1 << 40
    """bytes of memory that all processes of a command hold together, each counted by itself: for
    programs that reserve far more addresses than they use. Looked at every 20 ms, where `processes`
    is above 1"""
    file_size: int = 16 << 20
    """bytes of one file"""
    disk: int = 16 << 20
    """bytes of all files together, each at least a block. Kept by the kernel where namespaces
    hold; elsewhere looked at every 20 ms, so what is written between two looks may exceed it"""
    open_files: int = 32
    processes: int = 1
    """that one command may have at a time, itself included. 1 also refuses sockets and other
    programs than Python; more need a kind of sandbox that hides all other processes"""
    output: int = 8192
    """bytes kept of each of output and errors; the rest is read and thrown away"""


@dataclass(frozen=True, slots=True)
class SandboxResult:
    """How a run ended, e.g. `SandboxResult("ok", "42\\n", "", 0, False, 0.04)`."""

    status: Literal["ok", "error", "killed", "timeout"]
    """error: the code raised or exited with a number; killed: a limit or signal ended it"""
    stdout: str
    stderr: str
    exit_code: int | None
    truncated: bool
    seconds: float
    cpu_seconds: float = 0.0
