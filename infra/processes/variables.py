"""Environment variables that are on or off."""

from __future__ import annotations

import os

from infra.errors import InputError

CHECK_WEIGHTS = "TRIBUTARY_CHECK_WEIGHTS"
"""where the stack starts: pushes of weights through memory are made twice and compared"""


def is_on(variable: str) -> bool:
    """Return whether it is 1. Raises InputError for what is neither 1, 0 nor empty."""
    written = os.environ.get(variable, "")
    if written not in ("", "0", "1"):
        raise InputError(f"{variable}={written}: set it to 1 or 0, or unset it")
    return written == "1"
