"""The limit of open files: each connection is one, and ten thousand exceed what a shell allows."""

from __future__ import annotations

import resource


def raise_limit() -> int:
    """To the most that this process may have. -> that number."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
