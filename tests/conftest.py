"""What any test may ask for: the whole local stack, started once and always ended."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling

from infra.stack import Stack, down, up

# A shell's background job ignores Ctrl-C, and so would every command that a test starts and stops.
signal.signal(signal.SIGINT, signal.default_int_handler)


# How long an example takes says how busy the machine is.
hypothesis.settings.register_profile("suite", deadline=None)
if hypothesis.settings.get_current_profile_name() == "default":
    hypothesis.settings.load_profile("suite")

_TOGETHER = (
    {"test_smoke.py", "test_started_by_page.py", "test_written_secrets.py"},
    {"test_stack.py", "test_cluster.py"},
    {"test_sandbox.py", "test_sandbox_attacks.py"},
    {"test_sglang_exact.py", "test_sglang_generation.py", "test_weight_sync.py"},
    {f"test_megatron_{name}.py" for name in ("batches", "checkpoint", "critic", "parity")},
)
"""files that share servers or ranks, which each process would have to start for itself, or that
look for what the other leaves"""


class WholeFiles(LoadScopeScheduling):
    """How xdist deals out tests: a process takes a file at a time, or files that belong together.

    xdist's own groups of tests do not work with this pytest: they rename tests by a field that is
    gone.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        name = Path(file).name
        return next((min(files) for files in _TOGETHER if name in files), file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> WholeFiles:
    return WholeFiles(config, log)


@dataclass(frozen=True, slots=True)
class RunningStack:
    stack: Stack
    env: dict[str, str]


@pytest.fixture(scope="session")
def running_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    """A stack in a home of its own. Tests take `stack`, which also points their process at it."""
    folder = str(tmp_path_factory.mktemp("home"))
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TRIBUTARY_HOME", folder)
            started = up()
            env = started.env()
        yield RunningStack(started, env)
    finally:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TRIBUTARY_HOME", folder)
            down()


@pytest.fixture
def stack(running_stack: RunningStack, monkeypatch: pytest.MonkeyPatch) -> Stack:
    """The running stack, with TRIBUTARY_HOME, PREFECT_API_URL, RAY_ADDRESS, ... set to it."""
    for name, value in running_stack.env.items():
        monkeypatch.setenv(name, value)
    return running_stack.stack
