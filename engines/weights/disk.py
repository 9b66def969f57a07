"""Weights through an HF folder that every server can read: new leases, restarted servers, hosts
that share a file system and no fast network.

A push writes a folder for each version: all ranks their share of the buckets, a file each, and the
leader the index that names them, last. A folder without an index is not complete.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from engines.devices.waiting_time import folder_bytes, transfer_bound_s
from engines.sglang.http import order
from engines.weight_versions import BROKEN_WEIGHTS
from engines.weights.buckets import TAKE_S, OwnMemory, TrainedWeights
from engines.weights.transport import PublishReport, Target
from engines.weights.update import Servers, Update

_INDEX = "model.safetensors.index.json"
_KEPT = 2
"""versions that stay: a server may still read the one before"""


class Disk:
    """See `Transport`."""

    name = "disk"

    def __init__(self, folder: Path) -> None:
        """`folder`: the same on every rank's host and every server's."""
        self._folder = folder

    def push(
        self, weights: TrainedWeights, targets: Sequence[Target], version: int
    ) -> PublishReport:
        began = time.perf_counter()
        ranks, within_s = weights.ranks, weights.wait_s()
        place = self._folder / f"version-{version}"
        ranks.settle((lambda: _empty(place)) if ranks.is_leader else None)
        names = ranks.settle(lambda: _write(weights, place), within_s) or {}
        files = ranks.gather(names)
        total = sum(size for part in files for _, size in part.values())
        urls = [target.url for target in targets]

        def finish() -> float:
            _write_index(place, {name: file for part in files for name, (file, _) in part.items()})
            pause_seconds = load_folder(place, urls, version)
            for old in sorted(self._folder.glob("version-*"), key=_age)[:-_KEPT]:
                shutil.rmtree(old, ignore_errors=True)
            return pause_seconds

        paused = ranks.settle(finish if ranks.is_leader else None, within_s)
        seconds = time.perf_counter() - began
        return PublishReport(version, self.name, total, len(targets), seconds, paused or 0.0)

    def close(self) -> None:
        """The last folders stay: servers may be told to read them again."""


def load_folder(folder: Path, urls: Sequence[str], version: int) -> float:
    """Have servers read `folder` and serve it as `version`; returns the seconds of their pause.

    Raises EngineError if one refuses: then all of them call their weights "broken".
    """
    body = {"model_path": str(folder), "weight_version": BROKEN_WEIGHTS, "flush_cache": False}
    path = "/update_weights_from_disk"
    with Servers(urls) as servers:
        update = Update(servers, version, in_parts=False)
        try:
            update.begin()
            bound_s = transfer_bound_s(folder_bytes(folder), TAKE_S)
            servers.each(lambda url: order(url, path, body, timeout=bound_s))
            update.end()
        except BaseException:
            update.give_up()
            raise
    return update.pause_seconds


def _empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def _write(weights: TrainedWeights, folder: Path) -> dict[str, tuple[str, int]]:
    """This rank's share of the buckets; file and bytes of each tensor in them."""
    import torch
    from safetensors.torch import save_file

    written: dict[str, tuple[str, int]] = {}
    memory = OwnMemory(torch.device("cpu"))
    for index, bucket in enumerate(weights.buckets(memory, share_work=True)):
        if bucket is not None:
            file = f"rank-{weights.ranks.rank}-{index}.safetensors"
            save_file(dict(bucket.tensors), folder / file, metadata={"format": "pt"})
            written |= {name: (file, tensor.nbytes) for name, tensor in bucket.tensors}
    return written


def _write_index(folder: Path, file_of: dict[str, str]) -> None:
    draft = folder / f"{_INDEX}.draft"
    draft.write_text(json.dumps({"metadata": {}, "weight_map": file_of}))
    draft.replace(folder / _INDEX)


def _age(folder: Path) -> float:
    return folder.stat().st_mtime
