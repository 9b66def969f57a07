"""What became of each mutant, kept between runs in `build/mutants.jsonl`.

A survivor is tried again when any test file changes, a killed mutant when the file that killed it
does, and all of a source file's when that file changes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.mutants.mutations import Mutant


@dataclass(frozen=True, slots=True)
class Outcome:
    key: str
    name: str
    file: str
    killed_by: str | None
    """test file, or `timeout`; None: it survived"""
    digest: str
    """of that test file, or of all of them"""


def key_of(mutant: Mutant, source: str) -> str:
    """`source` is the file before the change."""
    text = f"{mutant.name} {mutant.number}\n{source}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def outcome(key: str, mutant: Mutant, killed_by: str | None, digests: Mapping[str, str]) -> Outcome:
    digest = digests.get(killed_by or "", digests["all"])
    return Outcome(key, mutant.name, mutant.file, killed_by, digest)


def digests_of(files: list[str]) -> dict[str, str]:
    """Of each test file, and of `all`."""
    made = {file: hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16] for file in files}
    made["all"] = hashlib.sha256("".join(made.values()).encode()).hexdigest()[:16]
    return made


def known(path: Path, digests: Mapping[str, str]) -> dict[str, Outcome]:
    """Outcomes that still hold, by key."""
    if not path.exists():
        return {}
    read = [Outcome(**json.loads(line)) for line in path.read_text().splitlines()]
    return {o.key: o for o in read if o.digest == digests.get(o.killed_by or "", digests["all"])}


def keep(path: Path, made: Outcome) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(asdict(made)) + "\n")
