"""The record of a version of the weights, and the folder of versions: which of them stay."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from secrets import token_hex
from typing import Any, Literal, Self

import xxhash
from pydantic import ValidationError

from infra.config import Config
from infra.errors import CorruptArtifact
from infra.store.store import Store

NAME = "manifest.json"
Identity = tuple[int, str]
"""a version and its checksum: equal for equal weights of one version"""
_OURS = re.compile(r"\d{8}-[0-9a-f]{8}")


class VersionName(Config):
    """Which weights are meant. Example: version=7, checksum="9f86d0818..." """

    version: int
    checksum: str
    """of all tensors; two trainers' version 7 differ in it"""

    @property
    def identity(self) -> Identity:
        return self.version, self.checksum


class Base(VersionName):
    """The version that a delta changes."""

    folder: str


class TensorRecord(Config):
    """One tensor as servers take it. Example: name="model.norm.weight", shape=(128,)"""

    name: str
    shape: tuple[int, ...]
    checksum: str
    """of its bytes in this version, whole"""


class BucketRecord(Config):
    """One file: what changed in tensors of one type that lie end to end."""

    file: str
    size: int
    checksum: str
    """of the file"""
    dtype: str
    """torch's name, e.g. `bfloat16`"""
    width: int
    """bytes of a number of this type"""
    tensors: tuple[TensorRecord, ...]

    @property
    def num_bytes(self) -> int:
        """Return the size of the whole tensors."""
        return self.width * sum(math.prod(tensor.shape) for tensor in self.tensors)

    @property
    def contents(self) -> tuple[str, tuple[tuple[str, tuple[int, ...]], ...]]:
        """Equal for buckets of which one can be a delta for the other."""
        return self.dtype, tuple((tensor.name, tensor.shape) for tensor in self.tensors)


class Manifest(VersionName):
    """A version of the weights, whole or as a delta."""

    format: Literal[1] = 1
    base: Base | None
    """None: the version is whole"""
    buckets: tuple[BucketRecord, ...]

    @classmethod
    def of(cls, version: int, base: Base | None, buckets: Iterable[BucketRecord]) -> Self:
        found = tuple(buckets)
        return cls(version=version, checksum=_checksum(found), base=base, buckets=found)

    @classmethod
    def parse(cls, text: bytes, origin: str) -> Self:
        """Raises CorruptArtifact for what was not written by `dump`, or changed since."""
        try:
            made = cls.model_validate_json(text)
        except ValidationError as error:
            raise CorruptArtifact(f"{origin} is no manifest of weights: {error}") from error
        if made.checksum != _checksum(made.buckets):
            raise CorruptArtifact(f"{origin} was changed or damaged after it was written")
        return made

    def dump(self) -> bytes:
        return self.model_dump_json().encode()

    @property
    def num_bytes(self) -> int:
        """Return the size of the weights."""
        return sum(bucket.num_bytes for bucket in self.buckets)

    @property
    def written_bytes(self) -> int:
        """Return the size of the files."""
        return sum(bucket.size for bucket in self.buckets)

    @property
    def checksums(self) -> Mapping[str, str]:
        """Return the checksums by tensor."""
        return dict(_checksums(self.buckets))


def checksum_of(data: Any) -> str:
    """Return the checksum of contiguous bytes. It finds damage, not forgery: who can write there
    can write anything."""
    return xxhash.xxh3_128_hexdigest(data)


def _checksums(buckets: Iterable[BucketRecord]) -> Iterator[tuple[str, str]]:
    for bucket in buckets:
        for tensor in bucket.tensors:
            yield tensor.name, tensor.checksum


def _checksum(buckets: Iterable[BucketRecord]) -> str:
    """Return the checksum of names, types, shapes and contents, however they are spread over
    buckets."""
    lines = [
        f"{tensor.name} {bucket.dtype} {list(tensor.shape)} {tensor.checksum}\n"
        for bucket in buckets
        for tensor in bucket.tensors
    ]
    return checksum_of("".join(sorted(lines)).encode())


def new_folder(version: int) -> str:
    """Return a name that no version had before. Example: new_folder(7) -> "00000007-3fa9c1d2" """
    return f"{version:08d}-{token_hex(4)}"


def read_manifest(store: Store, folder: str) -> Manifest:
    """Raises FileNotFoundError for a version that is not complete or was removed, CorruptArtifact,
    StorageError."""
    name = f"{folder}/{NAME}"
    return Manifest.parse(store.read(name), store.url(name))


def chain_to(store: Store, folder: str, held: Identity | None) -> list[tuple[str, Manifest]]:
    """The folders to apply in turn, from the version after `held`, or from a whole one.

    Raises as `read_manifest`: then the chain is broken.
    """
    chain: list[tuple[str, Manifest]] = []
    manifest = read_manifest(store, folder)
    while manifest.identity != held:
        chain.append((folder, manifest))
        base = manifest.base
        if base is None or base.identity == held:
            break
        folder = base.folder
        manifest = read_manifest(store, folder)
    return chain[::-1]


def remove_all_but(store: Store, kept: Sequence[str]) -> None:
    """Remove other versions, also those that an earlier trainer left; files of others stay."""
    for name in store.listdir(""):
        if _OURS.fullmatch(name) and name not in kept:
            store.delete_tree(name)
