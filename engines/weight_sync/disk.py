"""Weights from an HF folder that every server can read: new leases, repair, several hosts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from engines.sglang.http import call, order
from engines.weight_sync.report import PublishReport
from engines.weight_sync.update import CONTROL_S, TRANSFER_S, UpdatingServers, flush
from infra.errors import EngineError


def publish(folder: Path, endpoints: Sequence[str], version: int) -> PublishReport:
    """Let every server read `folder` and serve it as `version`. Raises EngineError on a refusal.

    SGLang's own load is one step (it needs no begin and end); nothing may be running meanwhile, so
    requests are put back first and resume with the new weights.
    """
    start = time.perf_counter()
    if not endpoints:
        raise EngineError("no server to publish to")
    body = {"model_path": str(folder), "weight_version": str(version), "flush_cache": False}

    def load(url: str) -> None:
        order(url, "/pause_generation", {"mode": "retract"}, timeout=CONTROL_S)
        try:
            order(url, "/update_weights_from_disk", body, timeout=TRANSFER_S)
            flush(url)
        finally:
            order(url, "/continue_generation", {}, timeout=CONTROL_S)
        found = str(call(url, "/model_info", timeout=CONTROL_S)["weight_version"])
        if found != str(version):
            raise EngineError(f"{url} has weight version {found} after loading {version}")

    with ThreadPoolExecutor(len(endpoints), thread_name_prefix="publish") as pool:
        UpdatingServers(endpoints, pool).each(load)
    return PublishReport(
        version=version,
        transport="disk",
        bytes=sum(file.stat().st_size for file in folder.glob("*.safetensors")),
        servers=len(endpoints),
        seconds=time.perf_counter() - start,
    )
