"""The sandbox under each confinement that holds, for tests."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from infra.sandbox.python import (
    MECHANISMS,
    Level,
    Limits,
    Mechanism,
    SandboxResult,
    level,
    run_python,
)

WEAKER: list[tuple[Mechanism, ...]] = [("landlock", "seccomp"), ("namespaces", "seccomp")]
EACH = bool(os.environ.get("TRIBUTARY_TEST_EACH_CONFINEMENT"))
"""`make sandbox`: everything in all of them"""
FOR_PROGRAMS = [MECHANISMS, *WEAKER] if EACH else [MECHANISMS]
FOR_ATTACKS = [MECHANISMS, *WEAKER] if EACH else WEAKER
"""what holds in the weaker ones holds in their sum"""
Run = Callable[..., SandboxResult]


def confined(mechanisms: tuple[Mechanism, ...]) -> Run:
    """`run(code, **limits)`; the test is skipped where the kernel lacks one of the mechanisms."""
    lacking = set(mechanisms) - set(level().mechanisms)
    if lacking:
        pytest.skip(f"this kernel offers no {', '.join(sorted(lacking))}")

    def run(code: str, **limits: float) -> SandboxResult:
        wanted = Limits(**{"seconds": 20.0, **limits})
        return run_python(code, wanted, confinement=Level(mechanisms))

    return run
