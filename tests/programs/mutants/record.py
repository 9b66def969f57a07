"""What became of each mutant, kept between runs in `build/mutants.jsonl`.

A mutant is tried again when its source file changes; a killed one also when the test that killed
it does, a survivor or one that took too long when any test does.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.programs.mutants.digests import ALL, digest, digests_of
from tests.programs.mutants.mutations import Mutant
from tests.programs.mutants.trial import TIMEOUT


@dataclass(frozen=True, slots=True)
class Outcome:
    key: str
    name: str
    file: str
    killed_by: str | None
    """test, test file that could not be imported, or `timeout`; None: it survived"""
    digest: str
    """of that test, or of all of them"""

    @property
    def is_timeout(self) -> bool:
        return self.killed_by == TIMEOUT


class Record:
    """Outcomes that still hold for these tests, by the key of their mutant."""

    def __init__(self, path: Path, files: Sequence[str]) -> None:
        self._path = path.absolute()
        self._digests = digests_of(files)
        lines = path.read_text().splitlines() if path.exists() else []
        read = (Outcome(**json.loads(line)) for line in lines)
        self.held = {o.key: o for o in read if o.digest == self._digest(o.killed_by)}

    def keep(self, key: str, mutant: Mutant, killed_by: str | None) -> None:
        made = Outcome(key, mutant.name, mutant.file, killed_by, self._digest(killed_by))
        self.held[key] = made
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(made)) + "\n")

    def _digest(self, killed_by: str | None) -> str:
        """Empty for a test that is gone."""
        if killed_by is None or killed_by == TIMEOUT:
            return self._digests[ALL]
        return self._digests.get(killed_by.partition("[")[0], "")


def key_of(mutant: Mutant, source: str) -> str:
    """`source` is the file before the change."""
    return digest([mutant.name, str(mutant.number), source])
