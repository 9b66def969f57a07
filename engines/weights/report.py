"""What a publish did."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PublishReport:
    """One publish of all weights to all servers.

    Example: PublishReport(7, "shared memory", 2631680, 2, seconds=0.05, pause_seconds=0.04)
    """

    version: int
    transport: str
    """its name: shared memory, broadcast, disk or disk delta"""
    bytes: int
    """size of the weights, counted once however many servers took them"""
    servers: int
    seconds: float
    """from the call to the last server's verified new version"""
    pause_seconds: float = 0.0
    """of these, those in which no server generated"""
    written_bytes: int = 0
    """of a disk delta: what was written of them, compressed"""
    kept_bytes: int = 0
    """of a disk delta: host memory of all ranks together that is kept for the next one"""
    refused: str = ""
    """why a server did not take them; the trainer is as it was"""
