"""What a publish did."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PublishReport:
    """One publish of all weights to all servers.

    Example: PublishReport(7, "shared_memory", 2631680, 2, seconds=0.05, copy_seconds=0.001)
    """

    version: int
    transport: str
    """shared_memory, disk or distributed"""
    bytes: int
    """size of the weights, counted once however many servers took them"""
    servers: int
    seconds: float
    """from the first pause to the last server's verified new version"""
    copy_seconds: float = 0.0
    """of these, copying into the shared memory: what a bare memcpy would cost"""
    refused: str = ""
    """why a server did not take them; the trainer is as it was"""
