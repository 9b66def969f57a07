"""`tributary publish` to real servers of others: they get all of a folder, or keep their own."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from engines.sglang.external.give_weights import Way
from engines.sglang.external.held_servers import HeldServers
from engines.sglang.http import call, order
from engines.weights import update
from engines.weights.server_weights import ServerWeights, server_weights
from flows.command.main import main
from tests.integration.conftest import SglangPair
from tests.parts.tiny import tiny_model

pytestmark = pytest.mark.integration

Publish = Callable[..., int]


@pytest.fixture
def theirs(sglang_pair: SglangPair) -> SglangPair:
    """The pair as somebody else started it."""
    for url in sglang_pair.urls:
        named = {"new_version": "default", "abort_all_requests": False}
        order(url, "/update_weight_version", named, timeout=10)
    return sglang_pair


@pytest.fixture
def publish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Publish:
    """The command in a home of its own; returns its exit code."""
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path / "home"))

    def run(*arguments: object) -> int:
        with pytest.raises(SystemExit) as ended:
            main(["publish", *map(str, arguments)])
        code = ended.value.code
        assert isinstance(code, int)
        return code

    return run


def _held(pair: SglangPair) -> list[ServerWeights]:
    return [server_weights(url) for url in pair.urls]


@pytest.mark.parametrize("way", ["auto", "broadcast", "disk"])
def test_servers_serve_the_folder_to_the_bit(
    way: Way, theirs: SglangPair, publish: Publish, capsys: pytest.CaptureFixture[str]
) -> None:
    before = _held(theirs)[0]
    assert publish(theirs.other_model, "--to", *theirs.urls, "--by", way) == 0
    first = _held(theirs)
    assert {held.version for held in first} == {"1"}
    assert {held.checksum for held in first} != {before.checksum}
    assert publish(theirs.model, "--to", theirs.router.url, "--by", way) == 0
    assert _held(theirs) == [ServerWeights("2", before.checksum)] * 2
    told = capsys.readouterr().out
    assert "version 2: 2.6 MB by" in told
    assert told.count(before.checksum[:16]) == 2


def test_a_model_of_another_shape_is_refused_before_anything_changes(
    theirs: SglangPair, publish: Publish, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = _held(theirs)
    wider = tiny_model(tmp_path / "wider", intermediate_size=320)
    assert publish(wider, "--to", *theirs.urls) == 2
    told = capsys.readouterr().err
    assert f"{theirs.urls[0]} serves a model with intermediate_size 256, and" in told
    assert publish(theirs.model, "--to", "http://127.0.0.1:9") == 2
    assert "nobody answers at http://127.0.0.1:9" in capsys.readouterr().err
    assert _held(theirs) == before


def test_servers_that_a_failed_push_left_half_new_get_their_own_weights_back(
    theirs: SglangPair,
    publish: Publish,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = _held(theirs)
    whole = update.Update.end
    tries: list[object] = []

    def die_first(self: update.Update) -> None:
        """A server dies when all weights are there, and nobody has said that they are whole."""
        tries.append(self)
        if len(tries) == 1:
            os.killpg(theirs.server("server-1").pid, signal.SIGKILL)
        whole(self)

    monkeypatch.setattr(update.Update, "end", die_first)
    assert publish(theirs.other_model, "--to", *theirs.urls, "--by", "broadcast") == 1
    assert theirs.urls[1] in capsys.readouterr().err
    first = theirs.urls[0]
    assert server_weights(first) == before[0]
    assert call(first, "/generate", {"input_ids": [1], "sampling_params": {"max_new_tokens": 1}},
                timeout=30)["output_ids"]  # fmt: skip


def test_servers_in_use_are_left_alone(
    theirs: SglangPair,
    publish: Publish,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("engines.sglang.external.publish._WAIT_S", 0.0)
    held = HeldServers(theirs.urls, 0)
    assert held.hold() == ""
    try:
        assert publish(theirs.other_model, "--to", theirs.urls[1]) == 1
        assert f"{theirs.urls[1]} is in use by another run" in capsys.readouterr().err
        assert held.renew() == []
    finally:
        held.give_back()
    assert publish(theirs.other_model, "--to", theirs.urls[1]) == 0
