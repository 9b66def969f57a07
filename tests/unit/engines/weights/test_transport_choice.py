"""Which transport a trainer takes, with servers that really try what they are asked to reach."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from engines.weights import choice
from engines.weights.choice import transport_to
from engines.weights.ranks import ALONE
from engines.weights.reach import answer_reach, reaches_this_host, reads_folder
from engines.weights.spec import WeightTransport
from engines.weights.transport import Target
from infra.errors import EngineError
from tests.parts.json_server import json_server

pytestmark = pytest.mark.unit

Answer = Callable[[dict[str, Any]], dict[str, Any] | None]


@contextmanager
def served(answer: Answer) -> Iterator[Target]:
    """A server that answers with this; None: it does not know the request."""

    def replied(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        reply = answer(body)
        return (404 if reply is None else 200), reply

    with json_server(replied) as port:
        yield Target(f"http://127.0.0.1:{port}", 1, "0")


def cut_off(body: dict[str, Any]) -> dict[str, Any] | None:
    """In a network from which the trainer's host cannot be reached."""
    return answer_reach(body) if "folder" in body else {"success": True, "reaches": False}


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if no server were on this host."""
    monkeypatch.setattr(choice, "is_on_this_host", lambda _: False)


def test_on_one_host_it_is_shared_memory() -> None:
    here = Target("http://127.0.0.1:30000", 1, "0")
    assert transport_to([here], ALONE, WeightTransport()).name == "shared memory"


@pytest.mark.usefixtures("far")
def test_elsewhere_it_is_broadcast_for_servers_that_reach_the_trainer() -> None:
    with served(answer_reach) as ours, served(lambda _: None) as foreign:
        assert reaches_this_host(ours.url)
        assert transport_to([ours, foreign], ALONE, WeightTransport()).name == "broadcast"


@pytest.mark.usefixtures("far")
def test_through_the_folder_where_a_server_does_not_reach_the_trainer(tmp_path: Path) -> None:
    wanted = WeightTransport(url=str(tmp_path))
    with served(answer_reach) as ours, served(cut_off) as distant:
        assert transport_to([ours, distant], ALONE, wanted).name == "disk delta"
        assert list(tmp_path.iterdir()) == [], "nothing of the try stays"
        with pytest.raises(EngineError, match=f"{distant.url}: no connection .* resources give no"):
            transport_to([ours, distant], ALONE, WeightTransport())
    with (
        served(lambda body: cut_off(body | {"file": "none"} if "file" in body else body)) as lost,
        pytest.raises(EngineError, match="not all servers read"),
    ):
        transport_to([lost], ALONE, wanted)


def test_a_server_of_others_is_not_known_to_read_a_folder(tmp_path: Path) -> None:
    with served(lambda _: None) as foreign:
        assert not reads_folder(foreign.url, str(tmp_path))


@pytest.mark.usefixtures("far")
def test_what_is_named_is_taken_or_refused(tmp_path: Path) -> None:
    target = Target("http://192.0.2.1:1", 1, "0")
    for transport in ("disk", "disk_delta"):
        wanted = WeightTransport(transport=transport, url=str(tmp_path))
        assert transport_to([target], ALONE, wanted).name == transport.replace("_", " ")
    wanted = WeightTransport(transport="broadcast")
    assert transport_to([target], ALONE, wanted).name == "broadcast"
    with pytest.raises(EngineError, match="not all trainer ranks and servers are on one host"):
        transport_to([target], ALONE, WeightTransport(transport="shared_memory"))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"transport": "disk_delta"}, "needs `url`"),
        ({"transport": "broadcast", "url": "s3://b/w"}, "uses no folder"),
        ({"transport": "disk", "url": "s3://b/w"}, "choose `disk_delta`"),
        ({"transport": "pigeon"}, "disk_delta"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(fields: Any, says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        WeightTransport.model_validate(fields)
