"""The tensors of one version in the host memory of a server, kept up to date from a folder; what a
trainer asks of them, and what the server answers.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from engines.devices.waiting_time import transfer_bound_s
from engines.sglang.http import UnknownRequest, call, order
from engines.weights.buckets import TAKE_S, taken_as
from engines.weights.disk_delta.delta_manifest import (
    BucketRecord,
    Identity,
    Manifest,
    chain_to,
    checksum_of,
)
from engines.weights.disk_delta.difference import apply, as_array, tensor_checksum
from engines.weights.shared_memory import allocate, handles
from engines.weights.transport import CONTROL_S, ServerWeights, Target
from infra.errors import CorruptArtifact, EngineError, StorageError
from infra.store.store import TRANSFERS, Store

if TYPE_CHECKING:
    import torch
    from torch import Tensor


Allocate = Callable[[int], "Tensor"]
PREPARE, CONFIRM, FORGET = (
    "/tributary/prepare_weights",
    "/tributary/confirm_weights",
    "/tributary/forget_weights",
)


class WeightCopy:
    """Holds one version whole, or none. Not for two threads at once.

    A change is made in place. If it fails, the copy holds no version, and the next one has to be
    whole.
    """

    def __init__(self, allocate: Allocate = allocate) -> None:
        """`allocate`: so many bytes of type uint8; shared memory unless said otherwise."""
        self._allocate = allocate
        self._flats: list[Tensor] = []
        self._manifest: Manifest | None = None

    @property
    def identity(self) -> Identity | None:
        return None if self._manifest is None else self._manifest.identity

    @property
    def checksums(self) -> Mapping[str, str]:
        """Return the checksums by tensor; empty without a version."""
        return {} if self._manifest is None else self._manifest.checksums

    def catch_up(self, store: Store, folder: str) -> None:
        """Become the version of `folder`, over the versions between, and verify every tensor that
        changed. Does nothing if it is that version already.

        Raises FileNotFoundError, CorruptArtifact or StorageError if it cannot: a file is missing,
        damaged or out of reach.
        """
        chain = chain_to(store, folder, self.identity)
        before, self._manifest = self._manifest, None
        if chain and chain[0][1].base is None:
            before = None
            self._make_room(chain[0][1])
        for at, manifest in chain:
            self._apply(store, at, manifest, before)
            before = manifest
        if chain and before is not None:
            self._verify(before, store.url(chain[-1][0]))
        self._manifest = before

    def forget(self) -> None:
        """Hold no version, and no memory."""
        self._manifest = None
        self._flats.clear()

    def buckets(self, wanted: Callable[[str], bool]) -> list[list[tuple[str, Tensor]]]:
        """Names and tensors in shared memory of those wanted, by bucket; none is empty."""
        if self._manifest is None:
            return []
        found = [
            [(name, tensor) for name, tensor in self._tensors(index, bucket) if wanted(name)]
            for index, bucket in enumerate(self._manifest.buckets)
        ]
        return [bucket for bucket in found if bucket]

    def _make_room(self, whole: Manifest) -> None:
        sizes = [bucket.num_bytes for bucket in whole.buckets]
        if [flat.nbytes for flat in self._flats] != sizes:
            self._flats.clear()  # never both at once
            self._flats = [self._allocate(size) for size in sizes]
        for flat in self._flats:
            flat.zero_()

    def _apply(
        self, store: Store, folder: str, manifest: Manifest, before: Manifest | None
    ) -> None:
        if before is not None and _contents(before) != _contents(manifest):
            raise CorruptArtifact(f"{store.url(folder)} has other tensors than its base")

        def change(index: int) -> None:
            bucket = manifest.buckets[index]
            name = f"{folder}/{bucket.file}"
            data = store.read(name)
            if checksum_of(data) != bucket.checksum:
                raise CorruptArtifact(
                    f"{store.url(name)} has another checksum than its manifest says: it was"
                    " changed or damaged after it was written"
                )
            apply(data, as_array(self._flats[index]).view(f"u{bucket.width}"))

        _each(change, range(len(manifest.buckets)))

    def _verify(self, manifest: Manifest, origin: str) -> None:
        def check(index: int) -> None:
            bucket = manifest.buckets[index]
            named = zip(bucket.tensors, self._tensors(index, bucket), strict=True)
            for record, (name, tensor) in named:
                if tensor_checksum(tensor) != record.checksum:
                    raise CorruptArtifact(f"{origin} does not give {name} as its manifest says")

        _each(check, range(len(manifest.buckets)))

    def _tensors(self, index: int, bucket: BucketRecord) -> list[tuple[str, Tensor]]:
        rest = self._flats[index].view(_dtype(bucket))
        found: list[tuple[str, Tensor]] = []
        for tensor in bucket.tensors:
            count = math.prod(tensor.shape)
            found.append((tensor.name, rest[:count].view(tensor.shape)))
            rest = rest[count:]
        return found


def _each(work: Callable[[int], None], items: Sequence[int]) -> None:
    """Side by side: the compression, the arithmetic and the network wait for each other little."""
    with ThreadPoolExecutor(TRANSFERS, thread_name_prefix="weights") as pool:
        for _ in pool.map(work, items):
            pass


def _contents(manifest: Manifest) -> list[object]:
    return [bucket.contents for bucket in manifest.buckets]


def _dtype(bucket: BucketRecord) -> torch.dtype:
    import torch

    return getattr(torch, bucket.dtype)


@dataclass(slots=True)
class ServedCopy:
    """Lives in the server's HTTP process; its methods may be called from several threads."""

    _copy: WeightCopy = field(default_factory=WeightCopy)
    _served: Mapping[str, str] = field(default_factory=dict[str, str])
    """checksums of the tensors that the server loaded last from here"""
    _served_as: ServerWeights | None = None
    """what the server said of itself when it had loaded them"""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def prepare(
        self, url: str, folder: str, held: ServerWeights
    ) -> Sequence[Sequence[tuple[str, Tensor]]]:
        """Bring the copy to the version in `folder` of `url`; returns the tensors, by bucket, that
        the server lacks, with those that it takes only together with them. These are all unless it
        holds (`held`) just what it loaded last from here.

        Raises as `WeightCopy.catch_up`.
        """
        with self._lock:
            self._copy.catch_up(Store(url), folder)
            known = self._served if held == self._served_as else {}
            checksums = self._copy.checksums.items()
            lacking = {taken_as(name) for name, bits in checksums if known.get(name) != bits}
            return self._copy.buckets(lambda name: taken_as(name) in lacking)

    def confirm(self, held: ServerWeights) -> None:
        """The server has loaded what was prepared, and says now that it holds this."""
        with self._lock:
            self._served, self._served_as = self._copy.checksums, held

    def forget(self) -> None:
        """Give the memory back: the next version can only be taken whole."""
        with self._lock:
            self._copy.forget()
            self._served, self._served_as = {}, None


@dataclass(frozen=True, slots=True)
class SharedBucket:
    """Tensors in shared memory of the server's host."""

    handles: Sequence[str]
    """one for each of its ranks"""
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a server has to load; or, if it cannot follow, why it needs the version whole."""

    buckets: Sequence[SharedBucket]
    lacks: str = ""


def prepare(target: Target, url: str, folder: str, held: ServerWeights, num_bytes: int) -> Prepared:
    """Have the server's copy become the version in `folder` of `url`. The server generates on.

    `num_bytes`: of the weights. Raises EngineError if it does not answer, or is none of ours.
    """
    body = {
        "url": url,
        "folder": folder,
        "version": held.version,
        "checksum": held.checksum,
        "num_ranks": target.num_ranks,
    }
    try:
        reply = call(target.url, PREPARE, body, timeout=transfer_bound_s(2 * num_bytes, TAKE_S))
    except UnknownRequest as error:
        raise EngineError(
            f"{target.url} keeps no copy of its weights, so it can take no delta: it is no server"
            " of Tributary. Choose `broadcast` or `disk` as the transport"
        ) from error
    buckets = [SharedBucket(each["handles"], each["num_bytes"]) for each in reply["buckets"]]
    return Prepared(buckets, reply["lacks"])


def confirm(url: str, held: ServerWeights) -> None:
    """Tell the copy that its server holds what was prepared."""
    body = {"version": held.version, "checksum": held.checksum}
    order(url, CONFIRM, body, timeout=CONTROL_S)


def forget(url: str) -> None:
    """Have the server give back the memory of its copy; one that does not answer has none."""
    with suppress(EngineError):
        order(url, FORGET, {}, timeout=CONTROL_S)


def answer_prepare(copy: ServedCopy, body: dict[str, Any]) -> dict[str, Any]:
    """The server's side of `prepare`."""
    held = ServerWeights(body["version"], body["checksum"])
    try:
        buckets = copy.prepare(body["url"], body["folder"], held)
    except (FileNotFoundError, StorageError) as error:
        return {"success": True, "buckets": [], "lacks": str(error)}
    shared = [
        {
            "handles": handles(bucket, body["num_ranks"]),
            "num_bytes": sum(tensor.nbytes for _, tensor in bucket),
        }
        for bucket in buckets
    ]
    return {"success": True, "buckets": shared, "lacks": ""}


def answer_confirm(copy: ServedCopy, body: dict[str, Any]) -> dict[str, Any]:
    """The server's side of `confirm`."""
    copy.confirm(ServerWeights(body["version"], body["checksum"]))
    return {"success": True}


def answer_forget(copy: ServedCopy) -> dict[str, Any]:
    """The server's side of `forget`."""
    copy.forget()
    return {"success": True}
