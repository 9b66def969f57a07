"""Weights as what changed since the version before, for servers that share only a folder with the
trainer: another cluster's, over S3.

    write the changes ─▶ servers' copies catch up ─▶ pause ─▶ load what changed, verify ─▶ continue

Each server has a copy of the weights in its host's memory, and takes a delta only if it holds the
very version that this names as its base. One that cannot follow says why, and the version is
written whole for it. Both sides pay with memory: the ranks together keep the version before, and
each server's process its copy, once the size of the weights each.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from engines.weights.buckets import TrainedWeights
from engines.weights.disk_delta.delta_manifest import (
    NAME,
    Base,
    Manifest,
    new_folder,
    remove_all_but,
)
from engines.weights.disk_delta.difference import ShareWriter
from engines.weights.disk_delta.weight_copy import Prepared, confirm, forget, prepare
from engines.weights.shared_memory import tell
from engines.weights.transport import PublishReport, ServerWeights, Target, server_weights
from engines.weights.update import Servers, Update, finish
from infra.errors import EngineError, StorageError
from infra.store.store import Store

WHOLE_EVERY = 20
"""versions; so that a new server has not more deltas than that to read"""
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Written:
    """What all ranks know of the newest version; the same on each."""

    newest: Base
    whole_bytes: int
    """of the files of the whole version that it goes back to"""
    folders: list[str]
    """from that one on"""


class DiskDelta:
    """See `Transport`."""

    name = "disk delta"

    def __init__(self, url: str) -> None:
        """`url`: any fsspec URL that every rank and every server can open, for this trainer alone:
        versions of another are removed. Raises StorageError."""
        self._store = Store(url)
        self._share = ShareWriter(self._store)
        self._written: _Written | None = None
        self._followers: set[str] = set()
        """URLs of servers that may have a copy; known to the leader"""
        self._is_leader = False

    def push(
        self, weights: TrainedWeights, targets: Sequence[Target], version: int
    ) -> PublishReport:
        began = time.perf_counter()
        ranks, within_s = weights.ranks, weights.wait_s()
        self._is_leader = ranks.is_leader
        manifest = self._write(weights, version)
        prepared = self._prepare(weights, targets, manifest, {})
        if any(each.lacks for each in prepared.values()):
            manifest = self._write(weights, version, whole=True)
            prepared = self._prepare(weights, targets, manifest, prepared)
            _refuse(prepared)
        paused = ranks.settle(
            (lambda: self._serve(targets, prepared, version)) if ranks.is_leader else None,
            within_s,
        )
        return PublishReport(
            version=version,
            transport=self.name,
            bytes=manifest.num_bytes,
            servers=len(targets),
            seconds=time.perf_counter() - began,
            pause_seconds=paused or 0.0,
            written_bytes=manifest.written_bytes,
            kept_bytes=sum(ranks.gather(self._share.kept_bytes)),
        )

    def close(self) -> None:
        """Also of the servers' copies, and remove the versions."""
        self._forget()
        if self._is_leader and self._followers:
            with Servers(list(self._followers)) as servers:
                servers.each(forget)
            self._followers.clear()
            self._remove_all_but([])

    def _write(self, weights: TrainedWeights, version: int, *, whole: bool = False) -> Manifest:
        """Write a version, whole if it has to be, its manifest last; all ranks get the manifest.

        Raises on every rank if any failed; then the next version is written whole.
        """
        written = self._written
        if written is None or len(written.folders) >= WHOLE_EVERY:
            whole = True
        try:
            manifest = self._write_as(weights, version, None if whole else written)
        except BaseException as error:
            self._forget()
            if isinstance(error, StorageError) and error.retryable:
                raise EngineError(str(error)) from error
            raise
        return manifest or self._write(weights, version, whole=True)

    def _write_as(
        self, weights: TrainedWeights, version: int, before: _Written | None
    ) -> Manifest | None:
        """Write it as what changed since `before`, or whole. None: the changes would not be
        smaller."""
        ranks, is_whole = weights.ranks, before is None
        folder = ranks.from_leader(lambda: new_folder(version))
        write = partial(self._share.write, weights, folder, whole=is_whole)
        own = ranks.settle(write, weights.wait_s()) or []
        files = [file for part in ranks.gather(own) for file in part]
        manifest = Manifest.of(version, None if before is None else before.newest, files)
        if before is not None and manifest.written_bytes >= before.whole_bytes:
            return None
        text, name = manifest.dump(), f"{folder}/{NAME}"
        ranks.settle((lambda: self._store.write(name, text)) if ranks.is_leader else None)
        newest = Base(version=version, checksum=manifest.checksum, folder=folder)
        if before is None:
            self._written = _Written(newest, manifest.written_bytes, [folder])
        else:
            self._written = _Written(newest, before.whole_bytes, [*before.folders, folder])
        return manifest

    def _prepare(
        self,
        weights: TrainedWeights,
        targets: Sequence[Target],
        manifest: Manifest,
        before: Mapping[str, Prepared],
    ) -> dict[str, Prepared]:
        """By URL; servers that could follow `before` are not asked again."""
        folder = self._newest.folder

        def ask() -> dict[str, Prepared]:
            self._followers |= {target.url for target in targets}
            ready = {url: each for url, each in before.items() if not each.lacks}
            asked = {target.url: target for target in targets if target.url not in ready}
            with Servers(list(asked)) as servers:
                url = self._store.root
                answers = servers.start(
                    lambda at: prepare(
                        asked[at], url, folder, server_weights(at), manifest.num_bytes
                    )
                )
                finish(answers)
                found = {at: each.result() for at, each in zip(asked, answers, strict=True)}
            for at, each in found.items():
                if each.lacks:
                    _log.warning("%s needs version %d whole: %s", at, manifest.version, each.lacks)
            return ready | found

        return weights.ranks.from_leader(ask, weights.wait_s())

    def _serve(
        self, targets: Sequence[Target], prepared: Mapping[str, Prepared], version: int
    ) -> float:
        """Have the servers load what is prepared and serve it; returns the seconds of the pause."""
        ranks_of = {target.url: target.num_ranks for target in targets}

        def load(url: str) -> None:
            for bucket in prepared[url].buckets:
                tell(url, bucket.handles, bucket.num_bytes, load_format=None)

        def check() -> None:
            reading = servers.start(server_weights)
            finish(reading)
            held = {at: each.result().checksum for at, each in zip(urls, reading, strict=True)}
            _compare(held, ranks_of, version)
            servers.each(lambda url: confirm(url, ServerWeights(str(version), held[url])))

        urls = list(ranks_of)
        with Servers(urls) as servers:
            update = Update(servers, version)
            try:
                update.begin()
                servers.each(load)
                update.end(check)
            except BaseException:
                update.give_up()
                raise
        self._remove_all_but(self._written.folders if self._written else [])
        return update.pause_seconds

    @property
    def _newest(self) -> Base:
        if self._written is None:
            raise EngineError("no version is written: a push writes one first")
        return self._written.newest

    def _forget(self) -> None:
        self._written = None
        self._share.forget()

    def _remove_all_but(self, kept: Sequence[str]) -> None:
        try:
            remove_all_but(self._store, kept)
        except StorageError as error:
            _log.warning("old versions of the weights stay for now: %s", error)


def _refuse(prepared: Mapping[str, Prepared]) -> None:
    for url, each in prepared.items():
        if each.lacks:
            raise EngineError(f"{url} cannot take the weights: {each.lacks}")


def _compare(held: Mapping[str, str], ranks_of: Mapping[str, int], version: int) -> None:
    """Servers with the same number of ranks have to hold the same bits."""
    found: dict[int, str] = {}
    for url, checksum in held.items():
        if found.setdefault(ranks_of[url], checksum) != checksum:
            raise EngineError(f"servers hold different bits of version {version}: {dict(held)}")
