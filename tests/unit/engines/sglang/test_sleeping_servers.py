"""The requests that a server on a GPU gets to sleep and wake, and their order. What answers is a
small server of our own: SGLang's gives no memory back without a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from engines.devices.units import SERVER_PARTS, ServerPart
from engines.sglang.http import Refused
from engines.sglang.servers import slots
from engines.sglang.servers.server import Place
from engines.sglang.servers.server_units import ServerTerms, TrainerDevices
from engines.sglang.servers.slots import Slot
from engines.sglang.spec import FleetSpec
from engines.weight_versions import BROKEN_WEIGHTS
from infra.errors import InputError
from tests.parts.json_server import json_server

pytestmark = pytest.mark.unit
NOTHING: frozenset[ServerPart] = frozenset()
WEIGHTS: frozenset[ServerPart] = frozenset({"weights"})


class Engine:
    """Answers as SGLang does, and refuses what would end SGLang's scheduler."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.asleep: set[str] = set()
        self.is_paused = False

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        self.asked.append((path, body.get("tags")))
        match path:
            case "/pause_generation":
                self.is_paused = True
            case "/continue_generation":
                self.is_paused = False
            case "/release_memory_occupation":
                if not self.is_paused or self.asleep & set(body["tags"]):
                    return 500, "the scheduler is not idle"
                self.asleep |= set(body["tags"])
                return 200, None
            case "/resume_memory_occupation":
                if not set(body["tags"]) <= self.asleep:
                    return 500, "KeyError"
                self.asleep -= set(body["tags"])
                return 200, None
            case "/abort_request":
                return 200, None
            case "/update_weight_version":
                assert body["new_version"] == BROKEN_WEIGHTS
            case _:
                return 404, path
        return 200, {"success": True}


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def url(engine: Engine) -> Iterator[str]:
    with json_server(engine.answer) as port:
        yield f"http://127.0.0.1:{port}"


def test_a_server_is_emptied_and_named_broken_before_it_gives_its_weights_back(
    engine: Engine, url: str
) -> None:
    slots.put_to_sleep(url, SERVER_PARTS)
    assert [path for path, _ in engine.asked] == [
        "/abort_request",
        "/pause_generation",
        "/update_weight_version",
        "/release_memory_occupation",
    ]
    assert engine.asleep == {"kv_cache", "cuda_graph", "weights"}
    engine.asked.clear()
    slots.wake(url, WEIGHTS)
    assert engine.asked == [("/resume_memory_occupation", ["weights"])], "it generates not yet"
    slots.wake(url, {"cache"})
    assert engine.asked[1:] == [
        ("/resume_memory_occupation", ["kv_cache", "cuda_graph"]),
        ("/continue_generation", None),
    ]


def test_a_server_keeps_its_name_while_only_its_cache_sleeps(engine: Engine, url: str) -> None:
    slots.put_to_sleep(url, {"cache"})
    assert "/update_weight_version" not in [path for path, _ in engine.asked]
    with pytest.raises(Refused):
        slots.wake(url, WEIGHTS)


def test_nothing_is_asked_for_nothing(engine: Engine, url: str) -> None:
    slots.put_to_sleep(url, ())
    slots.wake(url, ())
    assert not engine.asked


def test_the_names_are_those_of_the_pinned_sglang() -> None:
    """Read, not imported: SGLang's modules load for seconds."""
    import importlib.util

    found = importlib.util.find_spec("sglang")
    assert found is not None
    assert found.submodule_search_locations
    source = Path(found.submodule_search_locations[0]) / "srt"
    constants = (source / "constants.py").read_text()
    for tags in slots.TAGS.values():
        for tag in tags:
            assert f'= "{tag}"' in constants
    routes = (source / "entrypoints" / "http_server.py").read_text()
    assert '"/release_memory_occupation"' in routes
    assert '"/resume_memory_occupation"' in routes


class Started:
    """What a slot starts: notes how, and lives where the engine answers."""

    made: list[tuple[int, bool]]

    def __init__(self, *given: Any, saves_memory: bool) -> None:
        self.made.append((given[-1], saves_memory))
        self.is_alive, self.pid = True, 0

    def wait_ready(self) -> None: ...

    def recover(self) -> None: ...

    def stop(self) -> None:
        self.is_alive = False


@pytest.fixture
def slot(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slot:
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(slots, "Server", Started)
    monkeypatch.setattr(Started, "made", [], raising=False)
    monkeypatch.setattr(Slot, "url", url)
    return Slot(lambda: cast("Any", None), 0, num_gpus=2)


def test_a_slot_asks_only_for_what_changes(slot: Slot, engine: Engine, tmp_path: Path) -> None:
    place = Place(1, 0)
    slot.ensure(FleetSpec(), tmp_path, place)
    assert Started.made == [(0, True)]
    for parts in (NOTHING, NOTHING, WEIGHTS, WEIGHTS, SERVER_PARTS, WEIGHTS, SERVER_PARTS):
        slot.hold(parts, FleetSpec(), tmp_path, place)
    moved = [(path, tags) for path, tags in engine.asked if tags]
    assert moved == [
        ("/release_memory_occupation", ["kv_cache", "cuda_graph", "weights"]),
        ("/resume_memory_occupation", ["weights"]),
        ("/resume_memory_occupation", ["kv_cache", "cuda_graph"]),
        ("/release_memory_occupation", ["kv_cache", "cuda_graph"]),
        ("/resume_memory_occupation", ["kv_cache", "cuda_graph"]),
    ]
    assert slot.held_gpus == {0}

    slot.free_memory()
    assert slot.held_gpus == set()
    slot.ensure(FleetSpec(), tmp_path, place)
    assert not engine.asleep, "the next lease finds it awake"
    assert len(Started.made) == 1


def test_one_that_ended_asleep_starts_when_its_weights_wake(
    slot: Slot, engine: Engine, tmp_path: Path
) -> None:
    place = Place(1, 1)
    slot.ensure(FleetSpec(), tmp_path, place)
    slot.hold(NOTHING, FleetSpec(), tmp_path, place)
    assert slot.server is not None
    slot.server.stop()
    engine.asleep.clear()
    slot.hold(NOTHING, FleetSpec(), tmp_path, place)
    assert len(Started.made) == 1
    slot.hold(WEIGHTS, FleetSpec(), tmp_path, place)
    assert Started.made == [(1, True), (1, True)]
    assert engine.asleep == {"kv_cache", "cuda_graph"}


def test_without_a_memory_saver_a_server_ends_to_sleep(
    slot: Slot, engine: Engine, tmp_path: Path
) -> None:
    place = Place(1)
    slot.ensure(FleetSpec(), tmp_path, place)
    assert Started.made == [(1, False)], "on the last GPU, of its own"
    slot.hold(WEIGHTS, FleetSpec(), tmp_path, place)
    assert slot.is_alive
    slot.hold(NOTHING, FleetSpec(), tmp_path, place)
    assert slot.server is None
    assert not engine.asked


def test_servers_take_the_gpus_of_the_trainers_ranks_in_order() -> None:
    def places(gpus: tuple[int, ...], tp: int, count: int) -> list[Place]:
        terms = ServerTerms(FleetSpec(), Path("model"), tp, shares=TrainerDevices(gpus))
        return [terms.place(index) for index in range(count)]

    assert places((2, 3, 4, 5), 2, 2) == [Place(2, 2), Place(2, 4)]
    assert places((7,), 1, 1) == [Place(1, 7)]
    assert places((), 2, 2) == [Place(2), Place(2)], "on a CPU"
    for gpus, tp, count in (((0, 2), 2, 1), ((0,), 1, 2), ((0, 1, 2), 2, 2)):
        with pytest.raises(InputError, match="a server takes neighbours"):
            places(gpus, tp, count)
