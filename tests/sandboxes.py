"""The sandbox under each confinement that holds, for tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from infra.sandbox import MECHANISMS, Level, Limits, Mechanism, SandboxResult, level, run_python

CONFINEMENTS: list[tuple[Mechanism, ...]] = [
    MECHANISMS,
    ("landlock", "seccomp"),
    ("namespaces", "seccomp"),
]
Run = Callable[..., SandboxResult]


def confined(mechanisms: tuple[Mechanism, ...]) -> Run:
    """`run(code, **limits)`; the test is skipped where the kernel lacks one of the mechanisms."""
    lacking = set(mechanisms) - set(level().mechanisms)
    if lacking:
        pytest.skip(f"this kernel offers no {', '.join(sorted(lacking))}")

    def run(code: str, **limits: float) -> SandboxResult:
        wanted = Limits(**{"seconds": 20.0, **limits})  # type: ignore[arg-type]
        return run_python(code, wanted, confinement=Level(mechanisms))

    return run
