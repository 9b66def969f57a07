"""Whether two stores hold the same artifacts: all of them, each with all that it is made of."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from engines.rollout.records.gallery import ROLLOUTS_FILE
from engines.rollout.records.take_log import TAKES_FILE
from infra.store.store import file_sha256
from infra.timeline import TRACE_FILE
from tasks.rl.curve import CURVE_FILE
from tests.programs.chaos.scenarios import Scenario

_OF_THE_CLOCK = re.compile(r".*(_seconds|_per_s)|mfu|kv_use_.*|(rollouts|tokens)_recovered")
"""metrics that are other in every run"""
_TIMES = frozenset({TRACE_FILE})
"""files that are other in every run"""
_OF_SCORES = frozenset({CURVE_FILE, ROLLOUTS_FILE})
"""files of `rl` that hold scores on held-out problems, or rollouts of these"""
_SCORED = re.compile(r"eval_.*")
"""metrics of these scores"""
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


def unlike(scenario: Scenario, reference: Path, store: Path) -> str:
    """What a run that was disturbed did not keep of what it promises; empty when nothing."""
    if not scenario.is_exact:
        return broken_promises(reference, store)
    return differences(reference, store, with_scores=not scenario.scores_while_training)


def differences(reference: Path, store: Path, *, with_scores: bool = True) -> str:
    """What of the run's artifacts is not as in the reference; empty when nothing.

    `with_scores`: including those of held-out problems while a policy trains.
    """
    expected, found = manifests(reference), manifests(store)
    return ", ".join(
        [
            *(f"{name} is missing" for name in sorted(expected.keys() - found.keys())),
            *(f"{name} is strange" for name in sorted(found.keys() - expected.keys())),
            *(
                f"{name}: {what}"
                for name in sorted(expected.keys() & found.keys())
                for what in _differing(expected[name], found[name], with_scores)
            ),
        ]
    )


def broken_promises(reference: Path, store: Path) -> str:
    """What went wrong in a run that need not end with the reference's bits; empty when nothing.

    It has the same artifacts, each as its manifest says; and `rl` made as many steps, one after
    another, none of which trained on a ticket of an earlier one.
    """
    expected, found = manifests(reference), manifests(store)
    problems = [f"{name} is missing" for name in sorted(expected.keys() - found.keys())]
    problems += [f"{name} is strange" for name in sorted(found.keys() - expected.keys())]
    for name in sorted(expected.keys() & found.keys()):
        folder = _folder(found[name])
        problems += [f"{name}: {what}" for what in _damaged(found[name])]
        if (folder / TAKES_FILE).exists():
            wanted = len(_takes(_folder(expected[name])))
            problems += [f"{name}: {what}" for what in _wrong_takes(_takes(folder), wanted)]
    return ", ".join(problems)


def _wrong_takes(takes: Sequence[dict[str, Any]], wanted: int) -> Iterable[str]:
    if [take["step"] for take in takes] != list(range(1, wanted + 1)):
        yield f"the steps are {[take['step'] for take in takes]}, not 1 to {wanted}"
    versions = [take["version"] for take in takes]
    if any(later - earlier not in (0, 1) for earlier, later in pairwise(versions)):
        yield f"the versions are {versions}"
    tickets = [ticket for take in takes for ticket in take["tickets"]]
    if doubled := sorted({ticket for ticket in tickets if tickets.count(ticket) > 1}):
        yield f"tickets {doubled} were trained on twice"


def _takes(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / TAKES_FILE).read_text().splitlines()]


def _folder(manifest: Path) -> Path:
    return manifest.parent / f"a{json.loads(manifest.read_text())['attempt']}"


def checksums(manifest: Path) -> dict[str, str]:
    """Of an artifact's files that are results, by path, as its manifest states them."""
    return {name: sha256 for name, sha256 in _stated(manifest).items() if name not in _TIMES}


def _stated(manifest: Path) -> dict[str, str]:
    files = json.loads(manifest.read_text())["files"]
    return {file["path"]: file["sha256"] for file in files}


def _differing(expected: Path, found: Path, with_scores: bool) -> Iterable[str]:
    one, other = _content(expected, with_scores), _content(found, with_scores)
    for key in one.keys() | other.keys():
        if one.get(key) != other.get(key):
            yield f"{key} differs"
    yield from _damaged(found)


def _damaged(manifest: Path) -> Iterable[str]:
    for name, checksum in _stated(manifest).items():
        if file_sha256(_folder(manifest) / name) != checksum:
            yield f"{name} is not what its manifest says"


def _content(manifest: Path, with_scores: bool) -> dict[str, Any]:
    """All that must be equal: checksums of files, metrics, and what it was made from."""
    fields: dict[str, Any] = json.loads(manifest.read_text())
    metrics = {k: v for k, v in fields["metrics"].items() if not _OF_THE_CLOCK.fullmatch(k)}
    files = checksums(manifest)
    if not with_scores and fields["kind"] == "rl":
        metrics = {k: v for k, v in metrics.items() if not _SCORED.fullmatch(k)}
        files = {k: v for k, v in files.items() if k not in _OF_SCORES}
    return files | metrics | {key: fields[key] for key in _EQUAL}
