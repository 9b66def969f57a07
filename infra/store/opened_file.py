"""One file of a finished artifact, opened."""

from __future__ import annotations

import io
from typing import BinaryIO

from infra.store.artifacts import ArtifactStore
from infra.store.manifest import Manifest
from infra.store.store import check_file


def opened_file(artifacts: ArtifactStore, manifest: Manifest, name: str) -> BinaryIO | None:
    """None where there is none. In memory only if the store is not on this machine.

    Raises CorruptArtifact.
    """
    file = next((f for f in manifest.files if f.path == name), None)
    if file is None:
        return None
    url, store = artifacts.record(manifest).url, artifacts.store
    folder = store.local_path(url.removeprefix(f"{store.root}/"))
    if folder is None:
        data = artifacts.read(manifest.kind, manifest.digest, name)
        return None if data is None else io.BytesIO(data)
    check_file(folder / name, file, url)
    return (folder / name).open("rb")
