"""Which devices a server has, and which models it can take in turn there."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engines.sglang.arguments import served_type
from engines.sglang.spec import FleetSpec
from infra.errors import InputError

# Fields of config.json that say where a model came from, not what it is.
_PROVENANCE = ("_name_or_path", "transformers_version")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a server runs, whatever it serves."""

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
