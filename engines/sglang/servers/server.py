"""One SGLang server's life: start, ready, health, stop. Knows no Ray and no weights."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engines.devices.child_processes import ChildProcesses, log_tail
from engines.devices.waiting_time import SilentWork
from engines.families.common.model_config import read_config
from engines.families.common.registry import check_servable
from engines.sglang.arguments import MEMORY_SAVER, served_type, server_options
from engines.sglang.http import call, order, read_text
from engines.sglang.spec import FleetSpec
from infra.access import reachable
from infra.errors import EngineError, InputError, OutOfMemory
from infra.processes.memory import tells_of_memory
from infra.processes.network import free_ports

# Fields of config.json that say where a model came from, not what it is.
_PROVENANCE = ("_name_or_path", "transformers_version")


@dataclass(frozen=True, slots=True)
class Place:
    """Says where a server runs, whatever it serves."""

    tp: int
    """devices of the server"""
    shared_gpu: int | None = None
    """the first of them, where it takes turns with a trainer there, by its number in the cluster;
    None: its own GPUs, or none"""
    own_gpu: int | None = None
    """the first of its own, where they were chosen for it; None: by the number of its slot"""

    @property
    def chosen_gpu(self) -> int | None:
        """The first of its GPUs, where it does not follow from the number of its slot."""
        return self.own_gpu if self.shared_gpu is None else self.shared_gpu


def architecture(spec: FleetSpec, model: Path, place: Place) -> str:
    """Equal for models that one running server can take in turn by loading weights.

    Raises InputError if the folder has no readable config.json.
    """
    parts: dict[str, Any] = {"spec": spec.of_servers(), "place": asdict(place)}
    # Whether it is written, or follows from the model or the host: the same server.
    parts["spec"]["sglang"] = spec.sglang | {"dtype": served_type(spec, model)}
    for name in ("config.json", "generation_config.json"):
        path = model / name
        try:
            fields = json.loads(path.read_text()) if path.exists() or "gen" not in name else {}
        except (OSError, ValueError) as error:
            raise InputError(f"{path} cannot be read ({error}): is this an HF folder?") from error
        parts[name] = {key: value for key, value in fields.items() if key not in _PROVENANCE}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


_START_S = 3600.0
"""bound on a server's start; 2 s by fork on CPU, many minutes for a large model"""
_SILENT_S = 120.0
"""how long a starting server may do nothing, as far as one can see"""
_LOOK_S = 5.0
_CONTROL_S = 30.0
_PROBE_S = 60.0
_SLOW = 20
"""how many times the bound of a hung server one that works may take for an answer"""
_PROBE = {
    "input_ids": [1, 2, 3, 4],
    "sampling_params": {"max_new_tokens": 1, "temperature": 0, "ignore_eos": True},
}


class Server:
    """A running server. Blocking calls; not for concurrent use by several threads.

    `version` is what the server itself says its weights are, e.g. "17".
    """

    def __init__(
        self,
        children: ChildProcesses,
        name: str,
        spec: FleetSpec,
        model: Path,
        tp: int = 1,
        port: int | None = None,
        first_device: int = 0,
        *,
        saves_memory: bool = False,
    ) -> None:
        """Start it with the weights in `model`; returns before it is ready. `saves_memory`: it can
        give its device's memory back."""
        self.name = name
        self.port = free_ports(1)[0] if port is None else port
        self.log = children.logs / f"{name}.log"
        self._children = children
        self._has_head = bool(spec.sglang.get("is_embedding"))
        check_servable(read_config(model))
        options = server_options(spec, model, self.port, tp, first_device)
        if saves_memory:
            options |= MEMORY_SAVER
        self._host = reachable(options["host"])
        self.pid = children.serve(options, self.log)

    @property
    def url(self) -> str:
        return f"http://{self._host}:{self.port}"

    @property
    def is_alive(self) -> bool:
        return self._children.exit_code(self.pid) is None

    def wait_ready(self) -> None:
        """Return after a real generation; raises EngineError with the log's end if it cannot.

        The wait is as long as the server works: it reads weights, or compiles.
        """
        start = moved = looked = time.monotonic()
        work, last = SilentWork(self.pid, self.log), EngineError("never asked")
        while (now := time.monotonic()) < min(start + _START_S, moved + _SILENT_S):
            self._check_alive()
            try:
                call(self.url, "/model_info", timeout=2.0)
                self.probe(_PROBE_S)
            except EngineError as error:
                last = error
            else:
                self._check_alive()  # another server may have answered, on a port that it took
                return
            if now > looked + _LOOK_S:
                looked, moved = now, now if work.has_moved() else moved
            time.sleep(0.03)
        raise EngineError(
            f"server {self.name} was not ready after {now - start:.0f} s, and did nothing in the"
            f" last {now - moved:.0f} s ({last}); {self._advice()}"
        )

    def _check_alive(self) -> None:
        if not self.is_alive:
            text = f"server {self.name} ended while starting; {self._advice()}"
            raise OutOfMemory(text, "server") if tells_of_memory(text) else EngineError(text)

    def probe(self, timeout: float = _CONTROL_S) -> None:
        """One token from the model, or the outputs of its head: proves that scheduler and weights
        work, not only HTTP."""
        if self._has_head:
            reply = call(self.url, "/encode", {"input_ids": _PROBE["input_ids"]}, timeout=timeout)
            if not reply.get("embedding"):
                raise EngineError(f"server {self.name} computed nothing: {str(reply)[:300]}")
            return
        reply = call(self.url, "/generate", _PROBE, timeout=timeout)
        if len(reply.get("output_ids", ())) != 1:
            raise EngineError(f"server {self.name} generated nothing: {str(reply)[:300]}")

    def answer(self, hung_s: float) -> None:
        """Return when its scheduler has answered, which it does between two batches, also while
        generation is paused. Raises EngineError if it refuses, or if it does not answer in `hung_s`
        seconds and does nothing else either, such as reading weights."""
        limit, work = time.monotonic() + _SLOW * hung_s, None
        while True:
            asked = time.monotonic()
            try:
                call(self.url, "/server_info", timeout=hung_s / 2)
                return
            except EngineError:
                is_slow = asked + hung_s / 2 <= time.monotonic() < limit
                if not is_slow or (work is not None and not work.has_moved()):
                    raise
            work = work or SilentWork(self.pid, self.log)

    @property
    def version(self) -> str:
        return str(self.info()["weight_version"])

    def info(self) -> dict[str, Any]:
        return call(self.url, "/model_info", timeout=_CONTROL_S)

    def recover(self) -> None:
        """Make it usable after a holder that left it in any state; raises EngineError if it is not.

        Requests end, an open weight update is closed, a pause is lifted, one token proves it.
        """
        read_text(self.url, "/abort_request", {"abort_all": True}, timeout=_CONTROL_S)
        with contextlib.suppress(EngineError):  # refused when no update is open
            order(self.url, "/end_weight_update", {}, timeout=_CONTROL_S)
        order(self.url, "/continue_generation", {}, timeout=_CONTROL_S)
        self.probe()

    def stop(self) -> None:
        """End it and all its processes. A server keeps nothing worth a graceful end."""
        self._children.stop(self.pid)

    def _advice(self) -> str:
        return f"the end of {self.log}:\n{log_tail(self.log)}"
