"""A broadcast whose servers do not join says which, and what to do."""

from __future__ import annotations

import base64
import gc
import math
import pickle
import threading
import time
from collections.abc import Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.distributed_c10d import GroupName

from engines.rendezvous import listen, store_at
from engines.sglang.external.give_weights import WholeTensor
from engines.weights.broadcast import arrivals, broadcast, engine_group
from engines.weights.broadcast.arrivals import Arrivals
from engines.weights.broadcast.broadcast import Broadcast
from engines.weights.buckets import Bucket, TrainedWeights
from engines.weights.transport import Target
from engines.weights.update import Servers, finish
from infra.errors import EngineError
from tests.parts.json_server import json_server

pytestmark = pytest.mark.unit


@contextmanager
def _server(
    answer: Mapping[str, Any], after_s: float = 0.0, *, is_ours: bool = False
) -> Generator[Target]:
    """One that answers so, and joins no group. One of ours confirms that it is in none at first."""

    def reply(path: str, _: dict[str, Any]) -> tuple[int, Any]:
        if path == arrivals.LEAVE:
            return 200 if is_ours else 404, {"success": True}
        time.sleep(after_s)
        return 200, answer

    with json_server(reply) as port:
        yield Target(f"http://127.0.0.1:{port}", 1, "0")


@pytest.mark.parametrize("is_ours", [False, True], ids=["of others", "ours"])
def test_servers_that_do_not_join_are_named_with_what_they_say(
    is_ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (arrivals, broadcast, engine_group, engine_group):
        monkeypatch.setattr(module, "JOIN_S", 0.5)
    monkeypatch.setattr(engine_group, "ANSWER_S", 0.3)
    weights = TrainedWeights([WholeTensor("w", torch.zeros(4))])
    refusal = {"success": False, "message": "no such backend"}
    with (
        _server(refusal, is_ours=is_ours) as refuses,
        _server({"success": True}, 1.2, is_ours=is_ours) as late,
    ):
        transport = Broadcast()
        with pytest.raises(EngineError) as raised:
            transport.push(weights, [refuses, late], 1)
        transport.close()
    text = str(raised.value)
    path = arrivals.JOIN if is_ours else "/init_weights_update_group"
    assert "did not all join the trainer's process group at tcp://127.0.0.1:" in text
    assert "within 0 s" in text
    assert f"{refuses.url}: POST" in text
    assert "no such backend" in text
    assert f"{late.url}: POST {late.url}{path}: no answer in 0 s" in text
    assert "`disk_delta`" in text


def _joined(arriving: Arrivals, trainer: str, num_bytes: int) -> tuple[str, Any]:
    """The name of a group of one trainer and one server, and the trainer's side."""
    listener = listen("127.0.0.1")
    port = listener.getsockname()[1]
    body = {"trainer": trainer, "group": f"{trainer}-0", "host": "127.0.0.1", "port": port}
    body |= {"rank": 1, "world_size": 2, "num_bytes": num_bytes}
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(arriving.join, body)
        group = arrivals.gloo_group("127.0.0.1", port, 0, 2, "127.0.0.1", listener)
        assert answer.result() == {"success": True}
    return body["group"], group


def _sent(arriving: Arrivals, name: str, group: Any, begin: int, values: torch.Tensor) -> None:
    body = {"group": name, "begin": begin, "num_bytes": values.nbytes, "dtype": "float32"}
    body |= {"names": [f"at {begin}"], "shapes": [list(values.shape)]}
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(arriving.receive, body)
        arrivals.broadcast(group, values.view(-1).view(torch.uint8))
        assert answer.result() == {"success": True}


def _opened(arriving: Arrivals, name: str) -> dict[str, torch.Tensor]:
    (told,) = arriving.open({"group": name, "num_ranks": 1})["handles"]
    record = pickle.loads(base64.b64decode(told))
    flat = record["flattened_tensor"]
    return {
        place.name: flat[place.start_idx : place.end_idx].view(place.dtype).view(place.shape)
        for place in record["metadata"]
    }


def test_what_arrives_is_what_a_server_opens_push_after_push(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path))
    arriving = Arrivals()
    name, group = _joined(arriving, "trainer", 192)
    for push in range(2):
        first, second = torch.randn(2, 7), torch.randn(16)
        _sent(arriving, name, group, 0, first)
        _sent(arriving, name, group, 128, second)
        opened = _opened(arriving, name)
        assert list(opened) == ["at 0", "at 128"], push
        assert torch.equal(opened["at 0"], first)
        assert torch.equal(opened["at 128"], second)


def test_another_trainer_takes_the_place_of_one_that_left_without_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path))
    arriving = Arrivals()
    gone, _ = _joined(arriving, "killed", 64)
    name, group = _joined(arriving, "next", 64)
    for refused in (arriving.open, arriving.receive):
        answer = refused({"group": gone, "begin": 0, "num_bytes": 64})
        assert answer == {"success": False, "message": f"this server is in no group {gone}"}
    _sent(arriving, name, group, 0, torch.ones(16))
    assert torch.equal(_opened(arriving, name)["at 0"], torch.ones(16))
    assert arriving.leave({"group": name}) == {"success": True}
    assert not arriving.open({"group": name})["success"]


def test_a_trainer_that_dies_while_a_bucket_is_on_its_way_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path))
    arriving = Arrivals()
    name, group = _joined(arriving, "trainer", 64)
    body = {"group": name, "begin": 0, "num_bytes": 64, "dtype": "float32"}
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(arriving.receive, body | {"names": ["w"], "shapes": [[16]]})
        del group
        gc.collect()
        assert answer.result(timeout=30)["success"] is False


class _LazyGroup(dist.ProcessGroup):
    """A group as NCCL's is: made at once, connected at its first broadcast. Over gloo here."""

    def __init__(self, store: Store, rank: int, size: int, within_s: float = 10.0) -> None:
        super().__init__(rank, size)
        self._make = partial(dist.ProcessGroupGloo, store, rank, size, timedelta(seconds=within_s))
        self.connected: Any = None

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_name(self) -> GroupName:
        return GroupName(self._name)

    def getBackendName(self) -> str:
        return "lazy"

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> Any:
        self.connected = self.connected or self._make()
        return self.connected.broadcast(tensors, opts)


@contextmanager
def _lazy_server(
    steps: list[str], *, connects: bool = True, within_s: float = 10.0
) -> Generator[tuple[Target, dict[str, torch.Tensor]]]:
    """One whose rank does what SGLang's does: it meets the trainer at the store, answers, and
    connects when it is asked for the first bucket. Without `connects` it talks through an interface
    that leads nowhere: it reaches the store, and no rank reaches it."""
    groups: dict[str, _LazyGroup] = {}
    taken: dict[str, torch.Tensor] = {}

    def join(body: dict[str, Any]) -> None:
        name, size, rank = body["group_name"], body["world_size"], body["rank_offset"]
        address = f"tcp://{body['master_address']}:{body['master_port']}"
        store: Store = store_at(address, rank, size, timedelta(seconds=10))
        for prefix in (name, f"{name}/", "cpu/"):  # as torch's own helper nests them
            store = PrefixStore(prefix, store)
        groups[name] = _LazyGroup(store, rank, size, within_s)

    def take(body: dict[str, Any]) -> None:
        if not connects:
            time.sleep(1.5)
            return
        flat = torch.empty(sum(math.prod(shape) for shape in body["shapes"]))
        groups[body["group_name"]].broadcast([flat], dist.BroadcastOptions()).wait()
        sizes = [math.prod(shape) for shape in body["shapes"]]
        taken.update(zip(body["names"], flat.split(sizes), strict=True))

    do = {"/init_weights_update_group": join, "/update_weights_from_distributed": take}

    def answer(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        steps.append(path)
        do.get(path, lambda _: None)(body)
        return 200, {"success": True}

    with json_server(answer) as port:
        yield Target(f"http://127.0.0.1:{port}", 1, "0"), taken


def _register(name: str, within_s: float) -> None:
    """A backend of groups that give up connecting by themselves after `within_s`."""
    if not hasattr(dist.Backend, name.upper()):
        dist.Backend.register_backend(
            name,
            lambda store, rank, size, _: _LazyGroup(store, rank, size, within_s),
            devices=["cpu"],
        )


def test_a_trainer_meets_servers_that_connect_at_the_first_bucket() -> None:
    """The order of SGLang's ranks with NCCL: whoever connects while it joins waits for ever."""
    _register("lazy", 10.0)
    steps: list[str] = []
    with _lazy_server(steps) as (first, of_first), _lazy_server(steps) as (second, of_second):
        group = engine_group.EngineGroup([first, second], "lazy")
        assert steps == ["/init_weights_update_group"] * 2
        values = torch.randn(12)
        bucket = Bucket(values, [("a", values[:4].view(2, 2)), ("b", values[4:])])
        with Servers([first.url, second.url]) as servers:
            finish(group.send(servers, bucket))
            assert len(steps) == 6, "a small tensor alone connects them, and comes again"
            finish(group.send(servers, bucket))
        group.close()
    for taken in (of_first, of_second):
        assert torch.equal(torch.cat([taken["a"], taken["b"]]), values)
    assert steps[6:8] == ["/update_weights_from_distributed"] * 2, "a second bucket is sent once"


def test_ranks_that_meet_and_cannot_connect_are_told_from_a_slow_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A wrong interface: the call that connects has no bound of its own, here one of 2 s."""
    _register("lost", 2.0)
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(variable, "lo")
    monkeypatch.setattr(engine_group, "CONNECT_S", 0.5)
    monkeypatch.setattr(engine_group, "ANSWER_S", 0.2)
    values = torch.randn(1 << 20)
    bucket = Bucket(values, [("small", values[:2]), ("large", values[2:])])
    began, others = time.monotonic(), set(threading.enumerate())
    with (
        _lazy_server([], within_s=2.0) as (near, _),
        _lazy_server([], connects=False) as (lost, _),
    ):
        group = engine_group.EngineGroup([near, lost], "lost")
        with Servers([near.url, lost.url]) as servers:
            with pytest.raises(EngineError) as raised:
                group.send(servers, bucket)
            took = time.monotonic() - began
        group.close()
        for thread in set(threading.enumerate()) - others:
            if thread.name == "connect" or "process_request" in thread.name:
                thread.join(10)
    assert took < 1.5, "the bound is that of a connection, whatever the bucket's size"
    said = str(raised.value)
    assert "servers did not all connect to the trainer at 127.0.0.1" in said
    assert "NCCL_SOCKET_IFNAME=lo" in said
    assert "within 0 s (no connection came to be)" in said
    assert f"{lost.url}: " in said
