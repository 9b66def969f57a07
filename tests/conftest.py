"""What any test may ask for: the whole local stack, started once and always ended."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass

import hypothesis
import pytest

from infra.stack import Stack, down, up

# A shell's background job ignores Ctrl-C, and so would every command that a test starts and stops.
signal.signal(signal.SIGINT, signal.default_int_handler)


# How long an example takes says how busy the machine is.
hypothesis.settings.register_profile("suite", deadline=None)
if hypothesis.settings.get_current_profile_name() == "default":
    hypothesis.settings.load_profile("suite")

_SHARED = ("machine", "running_stack", "running_pair", "ranks")
"""fixtures of the session that start processes"""


@pytest.hookimpl(tryfirst=True)  # before xdist reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where several processes share the tests, a file is not split, nor are the users of what
    would have to start in each process."""
    for item in items:
        wanted = item.fixturenames if isinstance(item, pytest.Function) else []
        shared = next((name for name in _SHARED if name in wanted), "")
        item.add_marker(pytest.mark.xdist_group(shared or item.path.name))


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
