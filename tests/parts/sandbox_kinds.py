"""Every kind of sandbox that can run here, for tests of the contract."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from infra.sandbox.kinds import bubblewrap, container, process, remote
from infra.sandbox.python import Level, Mechanism, level
from infra.sandbox.sandbox import Limits, Sandbox
from tests.parts.sandbox_server import sandbox_server
from tests.parts.sandboxes import EACH, Run

PROCESS: dict[str, tuple[Mechanism, ...]] = {
    "process": ("namespaces", "landlock", "seccomp"),
    "process-landlock": ("landlock", "seccomp"),
    "process-namespaces": ("namespaces", "seccomp"),
}
KINDS = [*PROCESS, "bubblewrap", "container", "remote"]
FOR_CONTRACT = KINDS if EACH else ["process", "bubblewrap", "container", "remote"]
"""how a process is confined changes nothing of what it answers"""
FOR_ATTACKS = (
    KINDS if EACH else ["process-landlock", "process-namespaces", "bubblewrap", "container"]
)
"""what holds in the weaker processes holds in their sum, which a remote server has too"""
IMAGE = "TRIBUTARY_TEST_SANDBOX_IMAGE"
"""names an image with Python, by its digest, for the kind `container`"""
Start = Callable[[Limits], Sandbox]


@contextmanager
def starting(kind: str) -> Iterator[Start]:
    """`start(limits)`; the test is skipped, with the reason, where this machine cannot."""
    if kind in PROCESS:
        mechanisms = PROCESS[kind]
        if lacking := set(mechanisms) - set(level().mechanisms):
            pytest.skip(f"this kernel offers no {', '.join(sorted(lacking))}")
        yield lambda limits: process.start(limits, confinement=Level(mechanisms))
    elif kind == "bubblewrap":
        if why := bubblewrap.refusal():
            pytest.skip(why)
        yield bubblewrap.start
    elif kind == "container":
        image = os.environ.get(IMAGE, "")
        if why := container.refusal() or ("" if image else f"set {IMAGE}"):
            pytest.skip(why)
        yield lambda limits: container.start(limits, image)
    else:
        with sandbox_server() as server:
            yield lambda limits: remote.start(limits, url=server.url, key=server.key)


def program_runner(start: Start) -> Run:
    """`run(code, **limits)`: a program in a sandbox of its own."""

    def run(code: str, **limits: float):
        wanted = Limits(**{"seconds": 20.0, **limits})
        sandbox = start(wanted)
        try:
            return sandbox.exec(["python", "-c", code])
        finally:
            sandbox.stop()

    return run
