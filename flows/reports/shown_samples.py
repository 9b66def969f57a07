"""Chooses the rollouts that a page shows, and what it says of each; reads them from artifacts.

evaluate: each model's answers to the same held-out problems ─▶ pairs: before and after a stage
rl, opd, rollout: what was sampled while the policy learned   ─▶ with the trainer's logprobs
"""

from __future__ import annotations

import io
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from engines.rollout.records.dataset import ParquetRows
from engines.rollout.records.gallery import ROLLOUTS_FILE
from flows.reports.stage_view import StageView
from flows.running.records import RunRecord
from infra.store.artifacts import ArtifactStore
from infra.store.manifest import Manifest

BUDGET = 1_500_000
"""characters of JSON for all samples of a page"""
_ENDS = 500
"""tokens shown of a longer sample, at either end"""

Row = Mapping[str, Any]
"""a row of a `rollouts.parquet`; columns that an older file lacks are missing"""
_TOKENIZER = "tokenizer.json"
_MOST_ROWS = 2000
"""of a stage, evenly spaced; a page has room for fewer"""
_CHOSEN_BY = ("label", "domain")


@dataclass(frozen=True, slots=True)
class SampleSet:
    """What the page's browser gets, as JSON."""

    samples: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    pairs: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """positions of two models' answers to one problem whose rewards differ, largest change first"""
    pieces: dict[int, str] = field(default_factory=dict[int, str])
    """text of each token id that occurs"""
    kept: int = 0
    """rollouts that the artifacts have"""


def sample_set(
    stages: Mapping[str, Sequence[Row]],
    versions: Mapping[str, Sequence[str]],
    piece: Callable[[int], str] | None,
    budget: int = BUDGET,
) -> SampleSet:
    """Rows by stage. `piece` is the text of a token id; None: there is no tokenizer, and samples
    are shown as text. `versions` are each model's, in the order of its path."""
    groups = [
        [(stage, row) for row in rows]
        for stage, all_rows in stages.items()
        for rows in _by_label(all_rows)
    ]
    chosen: list[dict[str, Any]] = []
    spent = 0
    for stage, row in _in_turns(groups):
        sample = _sample(stage, row, piece is not None)
        spent += len(json.dumps(sample))
        if spent > budget:
            break
        chosen.append(sample)
    pieces = {i: piece(i) for i in sorted(_ids(chosen))} if piece else {}
    kept = sum(len(rows) for rows in stages.values())
    return SampleSet(chosen, _changed(chosen, versions), pieces, kept)


def _by_label(rows: Sequence[Row]) -> Iterable[list[Row]]:
    """The rows of each label and domain; steps with the last one first."""
    found: defaultdict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        found[row["label"], row["domain"]].append(row)
    return (
        reversed(found.values()) if any(k[0].startswith("step ") for k in found) else found.values()
    )


def _in_turns(groups: Sequence[Sequence[tuple[str, Row]]]) -> Iterable[tuple[str, Row]]:
    """One of each group in turn, so that a full page still has some of everything."""
    return (s for turn in zip_longest(*groups) for s in turn if s is not None)


def _sample(stage: str, row: Row, has_pieces: bool) -> dict[str, Any]:
    """Per-token values are of the tokens shown; logprobs of trained ones alone."""
    model, kind = _model_and_kind(row["label"])
    made: dict[str, Any] = {
        "stage": stage, "label": row["label"], "model": model, "kind": kind,
        "domain": row["domain"], "problem": row["problem_id"], "index": row["sample_index"],
        "status": row["status"], "reason": row["reason"], "reward": _rounded(row["reward"], 4),
        "parts": {k: _rounded(v, 4) for k, v in json.loads(row["rewards"]).items()},
        "length": len(row["tokens"]),
    }  # fmt: skip
    if not has_pieces:
        return made | {"prompt": row["prompt"][:4000], "response": row["response"][-8000:]}
    places = _shown(len(row["tokens"]))
    mask = np.asarray(row["loss_mask"], np.bool_)[places]
    made["tokens"] = np.asarray(row["tokens"])[places].tolist()
    made["mask"] = "".join("1" if m else "0" for m in mask)
    if len(places) < len(row["tokens"]):
        made["gap"] = [_ENDS, len(row["tokens"]) - len(places)]
    if mask.any():
        engine = np.asarray(row["logprobs"], np.float64)[places][mask]
        made["logprobs"] = [_rounded(v, 4) for v in engine.tolist()]
        made["versions"] = _runs(np.asarray(row["weight_versions"])[places][mask].tolist())
        trainer = row.get("trainer_logprobs") or []
        if len(trainer):
            differences = np.asarray(trainer, np.float64)[places][mask] - engine
            made["differences"] = [float(f"{_rounded(v, 9):.2g}") for v in differences.tolist()]
    return made


def _shown(length: int) -> NDArray[np.int64]:
    """Positions: all, or those at both ends."""
    if length <= 2 * _ENDS:
        return np.arange(length)
    return np.r_[0:_ENDS, length - _ENDS : length]


def _model_and_kind(label: str) -> tuple[str, str]:
    """Example: "agent-sft greedy" -> ("agent-sft", "greedy"); "step 4" -> ("", "step 4")"""
    model, _, kind = label.rpartition(" ")
    return (model, kind) if re.fullmatch(r"score|greedy|t\d\S*", kind) else ("", label)


def _changed(
    samples: Sequence[Mapping[str, Any]], versions: Mapping[str, Sequence[str]]
) -> list[tuple[int, int]]:
    """Answers to one problem, sampled the same way, of a model's version and of the next one."""
    place: dict[tuple[str, str, str, str], int] = {}
    for number, s in enumerate(samples):
        if s["model"]:
            place.setdefault((s["model"], s["kind"], s["domain"], s["problem"]), number)
    after_of = {b: a for names in versions.values() for b, a in pairwise(names)}
    found: list[tuple[int, int]] = []
    for (model, kind, domain, problem), before in place.items():
        after = place.get((after_of.get(model, ""), kind, domain, problem))
        if after is not None and samples[before]["reward"] != samples[after]["reward"]:
            found.append((before, after))
    return sorted(
        found, key=lambda pair: -abs(samples[pair[1]]["reward"] - samples[pair[0]]["reward"])
    )


def _ids(samples: Iterable[Mapping[str, Any]]) -> set[int]:
    return {token for sample in samples for token in sample.get("tokens", ())}


def _runs(values: Sequence[int]) -> list[list[int]]:
    """Example: [0, 0, 1] -> [[0, 2], [1, 1]]"""
    runs: list[list[int]] = []
    for value in values:
        if runs and runs[-1][0] == value:
            runs[-1][1] += 1
        else:
            runs.append([value, 1])
    return runs


def _rounded(value: float, digits: int) -> float:
    return round(float(value), digits) if np.isfinite(value) else 0.0


@dataclass(frozen=True, slots=True)
class _KeptRow(Mapping[str, Any]):
    """A row of which no more is in memory than tells rows apart, until more is asked for."""

    known: Mapping[str, Any]
    rows: ParquetRows
    number: int

    def __getitem__(self, name: str) -> Any:
        return self.known[name] if name in self.known else self.rows.row(self.number)[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.rows.row(self.number))

    def __len__(self) -> int:
        return len(self.rows.row(self.number))


def read_samples(
    record: RunRecord, views: Sequence[StageView]
) -> dict[str, list[Mapping[str, Any]]]:
    """Rows by stage: the evaluation's first, then those of the stages that sampled."""
    found = {v.name: file for v in views if (file := _open(record, v, ROLLOUTS_FILE))}
    order = sorted(found, key=lambda name: name != "evaluate")
    return {name: _rows(found[name]) for name in order}


def read_pieces(record: RunRecord, views: Sequence[StageView]) -> Callable[[int], str] | None:
    """The text of a token id, by the tokenizer of the run's first model; None if it has none."""
    for view in views:
        if file := _open(record, view, _TOKENIZER):
            from tokenizers import Tokenizer

            tokenizer = Tokenizer.from_str(file.read().decode())
            return lambda token: tokenizer.decode([token], skip_special_tokens=False)
    return None


def _open(record: RunRecord, view: StageView, name: str) -> BinaryIO | None:
    artifacts = ArtifactStore(record.store)
    return None if view.manifest is None else opened_file(artifacts, view.manifest, name)


def _rows(file: BinaryIO) -> list[Mapping[str, Any]]:
    rows = ParquetRows(file)
    count = min(len(rows), _MOST_ROWS)
    numbers = [n * len(rows) // count for n in range(count)]
    known = rows.columns(_CHOSEN_BY, numbers)
    return [_KeptRow(each, rows, number) for each, number in zip(known, numbers, strict=True)]


def opened_file(artifacts: ArtifactStore, manifest: Manifest, name: str) -> BinaryIO | None:
    """Open a file of an artifact; None where there is none. It is in memory only if the store is
    not on this machine.

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
    artifacts.verified.check(folder, [file], url, store.on_progress)
    return (folder / name).open("rb")
