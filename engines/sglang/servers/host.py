"""The environment SGLang needs on this host."""

from __future__ import annotations

import os
from functools import partial

from engines.devices.host_agent import HostAgent
from engines.devices.units import ServerPart
from engines.rendezvous import use_interface_of
from engines.sglang.servers.remote_slot import SlotState
from engines.sglang.servers.server import Place, Server
from engines.sglang.servers.slots import LAUNCHER, Slot
from engines.sglang.spec import FleetSpec
from infra.access import is_loopback, listening_host, reachable
from infra.cuda import has_cuda, let_hooks_find_the_runtime, nccl_environment, use_toolkit
from infra.processes.network import bypass
from infra.store.origins import FolderCopy

_ENVIRONMENT = {
    # GET /health answers at once instead of generating: a router asks every 2 s, and such a
    # request would make a weight update's flush fail. Our own probe generates.
    "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0",
    # SGLang imports its two hundred model files only where a model is none of ours
    "SGLANG_EXTERNAL_MODEL_PACKAGE": "engines.sglang.models",
}
_CPU_ENVIRONMENT = {
    "SGLANG_USE_CPU_ENGINE": "1",
    # some samplers are compiled on first use, which needs a C++ compiler at run time
    "TORCHDYNAMO_DISABLE": "1",
    # two spinning thread pools on two cores slow each other down many times
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "TOKENIZERS_PARALLELISM": "false",
    # AMX adds up a bf16 row of 512 or more numbers in an order that depends on the other rows
    "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16",
}


_CORES_OF_RANKS = "SGLANG_CPU_OMP_THREADS_BIND"


def share_cores(ranks: int) -> None:
    """Give each rank of a server on a CPU its share of this process's cores: by itself SGLang gives
    out whole NUMA nodes, and refuses more ranks than there are."""
    if ranks > 1 and not has_cuda():
        cores = sorted(os.sched_getaffinity(0))
        shares = [cores[rank::ranks] or [cores[rank % len(cores)]] for rank in range(ranks)]
        os.environ.setdefault(_CORES_OF_RANKS, "|".join(",".join(map(str, s)) for s in shares))


def prepare_environment() -> None:
    """Set what SGLang reads at import; a value that a person set stays."""
    wanted = _ENVIRONMENT | (nccl_environment() if has_cuda() else _CPU_ENVIRONMENT)
    for name, value in wanted.items():
        os.environ.setdefault(name, value)
    if has_cuda():
        use_toolkit()
    bypass(reachable(listening_host()))  # SGLang asks its own server whether it is up
    if not is_loopback(address := reachable(listening_host())):
        use_interface_of(address)  # a trainer on another host broadcasts weights


def prepare_memory_saver() -> None:
    """Let a server give its device's memory back: before its processes start."""
    # Without it CUDA graphs keep their memory; SGLang keeps a copy of them on the host.
    os.environ.setdefault("SGLANG_MEMORY_SAVER_CUDA_GRAPH", "1")
    let_hooks_find_the_runtime()  # schedulers are spawned with the saver's hook preloaded


class HostSlots:
    """What `RemoteSlot` orders; each slot by its number. A slot is used by one caller at a time."""

    def __init__(self, agent: HostAgent) -> None:
        self._agent = agent
        agent.children(LAUNCHER)  # it is ready when the first server is wanted
        self._slots: dict[int, Slot] = {}

    def ensure(self, index: int, spec: FleetSpec, model: FolderCopy, place: Place) -> SlotState:
        slot = self._slot(index)
        slot.ensure(spec, model.here(), place)
        return _state(slot)

    def hold(
        self,
        index: int,
        parts: frozenset[ServerPart],
        spec: FleetSpec,
        model: FolderCopy,
        place: Place,
    ) -> SlotState:
        slot = self._slot(index)
        slot.hold(parts, spec, model.here(), place)
        return _state(slot)

    def load(self, index: int, model: FolderCopy, version: int) -> None:
        self._slot(index).load(model.here(), version)

    def held_bytes(self, index: int) -> int:
        return self._slot(index).held_bytes

    def free_memory(self, index: int) -> SlotState:
        slot = self._slot(index)
        slot.free_memory()
        return _state(slot)

    def stop(self, index: int) -> SlotState:
        slot = self._slot(index)
        slot.stop()
        return _state(slot)

    def is_alive(self, index: int, pid: int) -> bool:
        server = self._server(index, pid)
        return server is not None and server.is_alive

    def answer(self, index: int, pid: int, hung_s: float) -> None:
        if (server := self._server(index, pid)) is not None:
            server.answer(hung_s)

    def stop_server(self, index: int, pid: int) -> None:
        if (server := self._server(index, pid)) is not None:
            server.stop()

    def _slot(self, index: int) -> Slot:
        if index not in self._slots:
            servers = partial(self._agent.children, LAUNCHER)
            self._slots[index] = Slot(servers, index, self._agent.num_gpus)
        return self._slots[index]

    def _server(self, index: int, pid: int) -> Server | None:
        """None if another one took its place."""
        server = self._slot(index).server
        return server if server is not None and server.pid == pid else None


def _state(slot: Slot) -> SlotState:
    return SlotState(slot.url, None if slot.server is None else slot.server.pid, slot.held_gpus)
