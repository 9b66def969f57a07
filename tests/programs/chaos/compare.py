"""Whether two stores hold the same artifacts: all of them, each with all that it is made of."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from infra.store.store import file_sha256

_OF_THE_CLOCK = re.compile(r".*(_seconds|_per_s)|mfu|rollouts_recovered")
"""metrics that are other in every run"""
_EQUAL = ("kind", "digest", "identity", "inputs", "seeds")


def manifests(store: Path) -> dict[str, Path]:
    """Of every artifact, by kind and digest."""
    found = store.glob("artifacts/*/*/manifest.json")
    return {f"{path.parent.parent.name}/{path.parent.name}": path for path in found}


def made_from(store: Path, kind: str) -> set[str]:
    """The artifacts of a kind and all that were made from them."""
    held = {name: json.loads(path.read_text()) for name, path in manifests(store).items()}
    found = {name for name, manifest in held.items() if manifest["kind"] == kind}
    while True:
        digests = {held[name]["digest"] for name in found}
        more = {name for name, m in held.items() if digests & set(m["inputs"].values())}
        if more <= found:
            return found
        found |= more


def differences(reference: Path, store: Path) -> str:
    """What of the run's artifacts is not as in the reference; empty when nothing."""
    expected, found = manifests(reference), manifests(store)
    return ", ".join(
        [
            *(f"{name} is missing" for name in sorted(expected.keys() - found.keys())),
            *(f"{name} is strange" for name in sorted(found.keys() - expected.keys())),
            *(
                f"{name}: {what}"
                for name in sorted(expected.keys() & found.keys())
                for what in _differing(expected[name], found[name])
            ),
        ]
    )


def checksums(manifest: Path) -> dict[str, str]:
    """Of an artifact's files, by path, as its manifest states them."""
    files = json.loads(manifest.read_text())["files"]
    return {file["path"]: file["sha256"] for file in files}


def _differing(expected: Path, found: Path) -> Iterable[str]:
    one, other = _content(expected), _content(found)
    for key in one.keys() | other.keys():
        if one.get(key) != other.get(key):
            yield f"{key} differs"
    folder = found.parent / f"a{json.loads(found.read_text())['attempt']}"
    for name, checksum in checksums(found).items():
        if file_sha256(folder / name) != checksum:
            yield f"{name} is not what its manifest says"


def _content(manifest: Path) -> dict[str, Any]:
    """All that must be equal: checksums of files, metrics, and what it was made from."""
    fields: dict[str, Any] = json.loads(manifest.read_text())
    metrics = {k: v for k, v in fields["metrics"].items() if not _OF_THE_CLOCK.fullmatch(k)}
    return checksums(manifest) | metrics | {key: fields[key] for key in _EQUAL}
