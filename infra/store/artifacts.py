"""Artifacts and checkpoints in the store.

    ROOT/artifacts/<kind>/<digest12>/a<n>/files...       one folder an attempt
                                     manifest.json       created last, names the winner's folder
    ROOT/checkpoints/<kind>/<digest12>/step-<s>-a<n>/files... + manifest.json, written last
                                       rollouts/<n>/a<n>-<i>   finished rollouts since then
                                       turns/<n>/a<n>-<i>      turns of unfinished ones
                                       takes/<s>/a<n>-<i>      what step s was trained on
                                       trained/<s>/..., shown/<s>/...   rollouts kept, to browse
                                       told/<k>/a<n>-<i>       what a data source was told then

An artifact never changes. Of several attempts that finish, the one that creates the manifest wins;
the others read its artifact. Checkpoints belong to a stage, not to an attempt, and go with it.
"""

from __future__ import annotations

import hashlib
import logging
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from infra.config import Found
from infra.errors import CorruptArtifact, FencedOut
from infra.home import home, seal, unseal
from infra.store.evicted import cached_copy
from infra.store.manifest import (
    ArtifactRecord,
    Manifest,
    StageWarning,
    library_versions,
    machine_type,
)
from infra.store.removal import KeptCheckpoint, NoteKind, Retention, retained
from infra.store.store import FileRecord, Store
from infra.store.uploads import Destination, elsewhere, forget_notes, note_destination
from infra.store.verified import VerifiedFiles, verified_copy

__all__ = ["ArtifactRecord", "ArtifactStore", "Manifest", "StageCheckpoints"]

_log = logging.getLogger(__name__)
_NAME = re.compile(r"step-\d+-a\d+")
_ATTEMPT = re.compile(r"a\d+")
_BY_TICKET: tuple[NoteKind, ...] = ("rollouts", "turns")
"""notes that go with the tickets that a checkpoint contains"""
_READERS = 16
"""files read at once: on S3 each waits for its answer"""


class ArtifactStore:
    """The artifacts of a store. `cache` is a local folder for copies and for what was verified; by
    default the home's."""

    def __init__(self, store: Store, cache: Path | None = None) -> None:
        self.store, self._cache = store, cache or home() / "cache"
        self.verified = VerifiedFiles(self._cache / "verified")

    def find(self, kind: str, digest: str) -> ArtifactRecord | None:
        """The finished artifact, if any. Raises CorruptArtifact when its manifest is damaged."""
        manifest = self.manifest(kind, digest)
        return None if manifest is None else self.record(manifest)

    def has_checkpoints(self, kind: str, digest: str) -> bool:
        """Return whether an unfinished stage left steps or finished rollouts to continue from."""
        return bool(self.store.listdir(_checkpoints(kind, digest)))

    def manifest(self, kind: str, digest: str) -> Manifest | None:
        """Return all that is known about an artifact."""
        path = f"{_folder(kind, digest)}/manifest.json"
        try:
            data = self.store.read(path)
        except FileNotFoundError:
            return None
        try:
            manifest = Manifest.model_validate_json(unseal(data))
        except ValueError as error:
            raise self._damaged(kind, digest, path, f"cannot be read: {error}") from error
        if (manifest.kind, manifest.digest) != (kind, digest):
            what = f"is of {manifest.kind} {manifest.digest}, not of {digest}"
            raise self._damaged(kind, digest, path, what)
        return manifest

    def commit(
        self,
        kind: str,
        digest: str,
        attempt: int,
        folder: Path,
        *,
        identity: Mapping[str, Any],
        inputs: Mapping[str, str],
        code: Mapping[str, Any],
        again: str = "",
        run: str = "",
        stage: str = "",
        metrics: Mapping[str, float],
        warnings: Sequence[StageWarning] = (),
        seeds: Mapping[str, int],
        mlflow_run_id: str,
        seconds: float,
    ) -> ArtifactRecord:
        """Upload the folder and create the manifest; the stage's checkpoints are dropped.

        Raises FencedOut when another attempt was first: `find` then gives theirs.
        """
        place = _folder(kind, digest)
        if self.store.exists(f"{place}/manifest.json"):
            raise _fenced_out(kind, digest, attempt)
        self.store.delete_tree(f"{place}/a{attempt}")
        files = self.store.upload_folder(folder, f"{place}/a{attempt}")
        manifest = Manifest(
            kind=kind, digest=digest, attempt=attempt, files=files, identity=dict(identity),
            inputs=dict(inputs), code=dict(code), again=again, run=run, stage=stage,
            seeds=dict(seeds), metrics=dict(metrics), warnings=list(warnings),
            mlflow_run_id=mlflow_run_id, seconds=seconds, created=time.time(),
            libraries=dict(library_versions()), machine=dict(machine_type()),
        )  # fmt: skip
        try:
            data = seal(manifest.model_dump_json())
            self.store.create(f"{place}/manifest.json", data)
        except FileExistsError as error:
            # A reply lost on the way makes the client send again and lose against itself.
            winner = self.manifest(kind, digest)
            if winner is None or (winner.attempt, winner.created) != (attempt, manifest.created):
                self.store.delete_tree(f"{place}/a{attempt}")
                raise _fenced_out(kind, digest, attempt) from error
        self.tidy(kind, digest)
        self.verified.note(self.store.local_path(f"{place}/a{attempt}"), files)
        return self.record(manifest)

    def tidy(self, kind: str, digest: str) -> None:
        """Drop what nobody needs once the stage is done: its checkpoints, and the files of attempts
        that were killed in their upload. `commit` does it; again where its job died meanwhile."""
        manifest = self.manifest(kind, digest)
        if manifest is None:
            return
        place = _folder(kind, digest)
        for name in self.store.listdir(place):
            if _ATTEMPT.fullmatch(name) and name != manifest.folder:
                self.store.delete_tree(f"{place}/{name}")
        self.store.delete_tree(_checkpoints(kind, digest))

    def local(self, record: ArtifactRecord) -> Path:
        """The artifact's files on this machine, verified. Raises CorruptArtifact.

        A store on this machine is used in place; unchanged files are not hashed again.
        """
        manifest = self.manifest(record.kind, record.digest)
        if manifest is None:
            raise CorruptArtifact(
                f"artifact {record.name} has no manifest any more in {self.store.root}: it was "
                "deleted. Run again: the stage is redone"
            )
        place = f"{_folder(manifest.kind, manifest.digest)}/{manifest.folder}"
        return cached_copy(self.store, place, manifest.files, self._cache, self.verified)

    def read(self, kind: str, digest: str, name: str) -> bytes | None:
        """One small file of a finished artifact, without the others; None where there is none.

        Raises CorruptArtifact.
        """
        manifest = self.manifest(kind, digest)
        file = next((f for f in manifest.files if f.path == name), None) if manifest else None
        if manifest is None or file is None:
            return None
        path = f"{_folder(kind, digest)}/{manifest.folder}/{name}"
        try:
            data = self.store.read(path)
        except FileNotFoundError as error:
            raise self._damaged(kind, digest, path, "is missing") from error
        if hashlib.sha256(data).hexdigest() != file.sha256:
            raise self._damaged(kind, digest, path, "is not what its manifest says")
        return data

    def names(self, *kinds: str) -> Sequence[tuple[str, str]]:
        """Kind and first digits of all that has a folder, finished or not; one listing a kind."""
        among = kinds or self.store.listdir("artifacts")
        return [(k, short) for k in among for short in self.store.listdir(f"artifacts/{k}")]

    def manifests(self, named: Sequence[tuple[str, str]]) -> Iterator[Manifest]:
        """Yield manifests of finished artifacts, each read once; of damaged ones it only warns."""
        with ThreadPoolExecutor(_READERS) as pool:
            yield from (each for each in pool.map(self._listed, named) if each is not None)

    def list(self, *kinds: str) -> list[ArtifactRecord]:  # pyrefly: ignore[not-a-type]
        """List finished artifacts, newest first. Reads every manifest: for a digest ask `find`."""
        records = [self.record(manifest) for manifest in self.manifests(self.names(*kinds))]
        return sorted(records, key=lambda record: record.created, reverse=True)

    def _listed(self, pair: tuple[str, str]) -> Manifest | None:
        kind, short = pair
        try:
            data = self.store.read(f"artifacts/{kind}/{short}/manifest.json")
            return Manifest.model_validate_json(unseal(data))
        except FileNotFoundError:
            return None
        except ValueError:
            _log.warning("the manifest of %s/%s in %s is damaged", kind, short, self.store.root)
            return None

    def record(self, manifest: Manifest) -> ArtifactRecord:
        """Return what stages hand on of it."""
        place = f"{_folder(manifest.kind, manifest.digest)}/{manifest.folder}"
        return ArtifactRecord(
            kind=manifest.kind, digest=manifest.digest, url=self.store.url(place),
            metrics=manifest.metrics, warnings=manifest.warnings,
            mlflow_run_id=manifest.mlflow_run_id,
            seconds=manifest.seconds, created=manifest.created,
            run=manifest.run, stage=manifest.stage,
        )  # fmt: skip

    def _damaged(self, kind: str, digest: str, path: str, what: str) -> CorruptArtifact:
        folder = self.store.url(_folder(kind, digest))
        return CorruptArtifact(
            f"{self.store.url(path)} {what}. Delete the folder {folder} and run again: the stage is"
            " redone"
        )


class _CheckpointManifest(Found):
    step: int
    attempt: int
    files: list[FileRecord]
    score: float | None = None
    rollouts_from: int = 0
    """lowest number of the noted rollouts that it needs"""


class StageCheckpoints:
    """A stage's checkpoints and notes, shared by its attempts."""

    def __init__(
        self,
        store: Store,
        kind: str,
        digest: str,
        attempt: int,
        scratch: Path,
        retention: Retention | None = None,
        fence: Callable[[], None] = lambda: None,
    ) -> None:
        """`fence` raises FencedOut when another attempt has taken this one's place."""
        self._store, self._attempt, self._scratch = store, attempt, scratch
        self._place = _checkpoints(kind, digest)
        self._retention = retention or Retention()
        self._fence = fence
        self._notes = 0
        self._begun = ""
        """the place that `begin` has emptied"""
        self._damaged: set[str] = set()
        """names of checkpoints that `latest` found damaged: they do not count as kept"""

    def begin(self, step: int, folder: Path) -> None:
        """What other hosts write of `folder` they put into the store from now on, where `save` will
        put the rest. In a local store they cannot: it comes through the job."""
        self._begun = self._place_of(step)
        self._store.delete_tree(self._begun)
        if not self._store.is_local:
            note_destination(folder, Destination(root=self._store.root, path=self._begun))

    def save(
        self, step: int, folder: Path, score: float | None = None, rollouts_from: int = 0
    ) -> None:
        """Move a finished local folder into durable storage; visible only when complete.

        `score` is what "best" means for the retention. Noted rollouts below `rollouts_from` go,
        unless another kept checkpoint needs them.
        Raises FencedOut, and leaves nothing.
        """
        place = self._place_of(step)
        if place != self._begun:
            self._store.delete_tree(place)
        self._begun = ""
        files = [*elsewhere(folder), *self._store.upload_folder(folder, place)]
        try:
            self._fence()
        except FencedOut:
            self._store.delete_tree(place)
            raise
        manifest = _CheckpointManifest(
            step=step, attempt=self._attempt, files=files, score=score, rollouts_from=rollouts_from
        )
        self._store.write(f"{place}/manifest.json", seal(manifest.model_dump_json()), sync=True)
        self._damaged.discard(Path(place).name)
        forget_notes(folder)
        shutil.rmtree(folder)
        self._prune()

    def latest(self) -> tuple[int, Path] | None:
        """Step and verified local folder of the newest whole checkpoint; torn and damaged ones are
        passed over with a warning. Read it before the next `save`."""
        for name in self._names():
            manifest = self._manifest(name)
            if manifest is None:
                _log.warning("checkpoint %s of %s is incomplete; it is skipped", name, self._place)
                continue
            copy = self._scratch / "checkpoints" / name
            try:
                return manifest.step, verified_copy(
                    self._store, f"{self._place}/{name}", manifest.files, copy, None
                )
            except CorruptArtifact as error:
                self._damaged.add(name)
                _log.warning("checkpoint passed over: %s", error)
        return None

    def note(self, kind: NoteKind, number: int, data: bytes) -> None:
        """Store a piece of work now; rollouts stay while a kept checkpoint needs them."""
        self._notes += 1
        name = f"{number:08d}/a{self._attempt:04d}-{self._notes:06d}"
        self._store.write(f"{self._place}/{kind}/{name}", data)

    def notes(self, kind: NoteKind, first: int, last: int | None = None) -> list[bytes]:
        """Return all that attempts noted under these numbers, in the order in which they did."""
        wanted = [f"{first:08d}"]
        if first != last:  # one number needs no list of all
            names = self._store.listdir(f"{self._place}/{kind}")
            wanted = [n for n in names if first <= int(n) and (last is None or int(n) <= last)]
        folders = [f"{self._place}/{kind}/{name}" for name in wanted]
        with ThreadPoolExecutor(_READERS) as readers:
            listed = readers.map(self._store.listdir, folders)
            places = [(n, f) for f, inside in zip(folders, listed, strict=True) for n in inside]
            places.sort(key=lambda place: _attempt_and_count(place[0]))
            return list(readers.map(self._store.read, [f"{f}/{n}" for n, f in places]))

    def _place_of(self, step: int) -> str:
        """Return the place of this attempt's checkpoint."""
        return f"{self._place}/step-{step:08d}-a{self._attempt}"

    def _names(self) -> list[str]:
        """Newest step first; of one step, the newest attempt first."""
        names = [n for n in self._store.listdir(self._place) if _NAME.fullmatch(n)]
        return sorted(names, key=_step_and_attempt, reverse=True)

    def _manifest(self, name: str) -> _CheckpointManifest | None:
        """None while a checkpoint is incomplete, or when what tells of it is damaged."""
        path = f"{self._place}/{name}/manifest.json"
        try:
            manifest = _CheckpointManifest.model_validate_json(unseal(self._store.read(path)))
            if (manifest.step, manifest.attempt) == _step_and_attempt(name):
                return manifest
            error = ValueError(f"is of step {manifest.step}, attempt {manifest.attempt}")
        except FileNotFoundError:
            return None
        except ValueError as damage:
            error = damage
        _log.warning("checkpoint passed over: %s: %s", self._store.url(path), error)
        return None

    def _prune(self) -> None:
        """Drop what the retention does not keep, with leftovers older than what it does."""
        names = self._names()
        sound = [name for name in names if name not in self._damaged]
        whole = [(name, m) for name in sound if (m := self._manifest(name)) is not None]
        kept = retained(
            [KeptCheckpoint(name, m.step, m.score) for name, m in whole], self._retention
        )
        if len(whole) < self._retention.last:
            return  # a young stage: nothing is old enough to go
        newest = {name for name, _ in whole[: self._retention.last]}
        oldest = names.index(whole[self._retention.last - 1][0])
        for name in names[oldest + 1 :]:
            if name not in kept and name not in newest:
                self._store.delete_tree(f"{self._place}/{name}")
        first = min(m.rollouts_from for name, m in whole if name in newest)
        for kind in _BY_TICKET:
            for number in self._store.listdir(f"{self._place}/{kind}"):
                if int(number) < first:
                    self._store.delete_tree(f"{self._place}/{kind}/{number}")


def _attempt_and_count(note: str) -> tuple[int, int]:
    """Example: a0002-000013 is the 13th note of the second attempt."""
    attempt, count = note.removeprefix("a").split("-")
    return int(attempt), int(count)


def _step_and_attempt(name: str) -> tuple[int, int]:
    step, _, attempt = name.removeprefix("step-").partition("-a")
    return int(step), int(attempt)


def _folder(kind: str, digest: str) -> str:
    return f"artifacts/{kind}/{digest[:12]}"


def _checkpoints(kind: str, digest: str) -> str:
    return f"checkpoints/{kind}/{digest[:12]}"


def _fenced_out(kind: str, digest: str, attempt: int) -> FencedOut:
    return FencedOut(
        f"attempt {attempt} at {kind}/{digest[:12]} came second: another attempt has committed "
        "its artifact, and that one is used. Nothing is lost"
    )
