"""`tributary publish` to real servers of others: they get all of a folder, or keep their own."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from engines.sglang.external.give_weights import Way
from engines.sglang.external.held_servers import HeldServers
from engines.sglang.http import call
from engines.weights import update
from engines.weights.transport import ServerWeights, server_weights
from flows.command.main import main
from tests.integration.conftest import SglangPair
from tests.parts.tiny import tiny_model

pytestmark = pytest.mark.integration

Publish = Callable[..., int]


@pytest.fixture
def publish() -> Publish:
    """The command; returns its exit code."""

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
    way: Way, external_pair: SglangPair, publish: Publish, capsys: pytest.CaptureFixture[str]
) -> None:
    before = _held(external_pair)[0]
    assert publish(external_pair.other_model, "--to", *external_pair.urls, "--by", way) == 0
    first = _held(external_pair)
    assert {held.version for held in first} == {"1"}
    assert {held.checksum for held in first} != {before.checksum}
    assert publish(external_pair.model, "--to", external_pair.router.url, "--by", way) == 0
    assert _held(external_pair) == [ServerWeights("2", before.checksum)] * 2
    told = capsys.readouterr().out
    assert "version 2: 2.6 MB by" in told
    assert told.count(before.checksum[:16]) == 2


def test_a_model_of_another_shape_is_refused_before_anything_changes(
    external_pair: SglangPair, publish: Publish, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = _held(external_pair)
    wider = tiny_model(tmp_path / "wider", intermediate_size=320)
    assert publish(wider, "--to", *external_pair.urls) == 2
    told = capsys.readouterr().err
    assert f"{external_pair.urls[0]} serves a model with intermediate_size 256, and" in told
    assert publish(external_pair.model, "--to", "http://127.0.0.1:9") == 2
    assert "nobody answers at http://127.0.0.1:9" in capsys.readouterr().err
    assert _held(external_pair) == before


def test_servers_that_a_failed_push_left_half_new_get_their_own_weights_back(
    external_pair: SglangPair,
    publish: Publish,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = _held(external_pair)
    whole = update.Update.end
    tries: list[object] = []

    def die_first(self: update.Update) -> None:
        """A server dies when all weights are there, and nobody has said that they are whole."""
        tries.append(self)
        if len(tries) == 1:
            os.killpg(external_pair.server("server-1").pid, signal.SIGKILL)
        whole(self)

    monkeypatch.setattr(update.Update, "end", die_first)
    assert publish(external_pair.other_model, "--to", *external_pair.urls, "--by", "broadcast") == 1
    assert external_pair.urls[1] in capsys.readouterr().err
    first = external_pair.urls[0]
    assert server_weights(first) == before[0]
    assert call(first, "/generate", {"input_ids": [1], "sampling_params": {"max_new_tokens": 1}},
                timeout=30)["output_ids"]  # fmt: skip


def test_servers_in_use_are_left_alone(
    external_pair: SglangPair,
    publish: Publish,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("engines.sglang.external.give_weights._WAIT_S", 0.0)
    held = HeldServers(external_pair.urls, 0)
    assert held.hold() == ""
    try:
        assert publish(external_pair.other_model, "--to", external_pair.urls[1]) == 1
        assert f"{external_pair.urls[1]} is in use by another run" in capsys.readouterr().err
        assert held.renew() == []
    finally:
        held.give_back()
    assert publish(external_pair.other_model, "--to", external_pair.urls[1]) == 0
