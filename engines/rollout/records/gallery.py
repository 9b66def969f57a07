"""Gallery: a few rollouts of every step, kept for a person to browse.

Also which samples of a step a person is shown, and of which the trainer says what it thought.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from engines.rollout.protocols import ChatFormat
from engines.rollout.records.dataset import ParquetRows
from engines.step_inputs import Values
from engines.types import Group, Sample

if TYPE_CHECKING:
    import pyarrow as pa


MOST_STEPS, MOST_TOKENS = 800, 4_000_000
"""of a stage's steps that have samples to show, and of all these samples: some 70 MB"""

SHOWN_GROUPS = 3
"""of a step, as many are shown"""

_SHOWN_TOKENS = 65_536
"""of the shown samples of a step together; of a single group's there may be more"""

_SCORED_TOKENS = 65_536
"""of a step, whose logprobs come back from the ranks: 256 KiB"""


def best_and_worst(groups: Sequence[Group], count: int = SHOWN_GROUPS) -> list[Sample]:
    """Return the best and worst of `count` groups, spread over the step; groups with signal first.
    Of fewer where the samples are long."""
    chosen = [g for g in groups if g.has_signal] or list(groups)
    shown: list[Sample] = []
    tokens = 0
    for group in chosen[:: max(1, len(chosen) // count)][:count]:
        ranked = sorted(group.samples, key=lambda s: s.reward)
        pair = ranked[-1:] + ranked[:-1][:1]
        tokens += sum(len(s.tokens) for s in pair)
        if shown and tokens > _SHOWN_TOKENS:
            break
        shown += pair
    return shown


def first_of(samples: Sequence[Sample]) -> Sequence[Sample]:
    """Return as many as are few tokens together, but one at least."""
    tokens = accumulate(len(sample.tokens) for sample in samples)
    return samples[: max(1, sum(total <= _SHOWN_TOKENS for total in tokens))]


@dataclass(slots=True)
class ShownSteps:
    """The steps of which samples are shown: of each in a short stage, of one in 2, 4, 8 in a long
    one, so that they are few. What stays follows from the steps alone, so a resumed stage keeps the
    same."""

    one_in: int = 1
    tokens: dict[int, int] = field(default_factory=dict[int, int])
    """by step"""

    def take(self, step: int, tokens: int) -> bool:
        """Return whether this step's samples are shown, which have so many tokens. Those of earlier
        steps may be so no longer."""
        if step % self.one_in:
            return False
        self.tokens[step] = tokens
        while len(self.tokens) > 1 and (
            len(self.tokens) > MOST_STEPS or sum(self.tokens.values()) > MOST_TOKENS
        ):
            self.one_in *= 2
            self.tokens = {s: n for s, n in self.tokens.items() if s % self.one_in == 0}
        return step in self.tokens

    def state(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {"one_in": self.one_in, "tokens": list(self.tokens.items())}

    @staticmethod
    def of_state(state: Mapping[str, Any]) -> ShownSteps:
        return ShownSteps(state["one_in"], dict(state["tokens"]))


def to_score(samples: Sequence[Sample], groups: Sequence[Group]) -> list[int]:
    """Positions among the step's samples: those that will be shown, then others from the first on,
    as long as they are few tokens."""
    shown = {(s.rollout_id, s.branch) for s in best_and_worst(groups)}
    order = sorted(
        range(len(samples)), key=lambda i: (samples[i].rollout_id, samples[i].branch) not in shown
    )
    chosen: list[int] = []
    tokens = 0
    for position in order:
        tokens += len(samples[position].tokens)
        if tokens > _SCORED_TOKENS:
            break
        chosen.append(position)
    return chosen


ROLLOUTS_FILE = "rollouts.parquet"

TrainerLogprobs: TypeAlias = "Mapping[tuple[str, int], Values]"
"""by rollout and branch"""

NO_LOGPROBS: TrainerLogprobs = {}

_STATEMENT = b"tributary.kept"
"""in a file's metadata: which rollouts it has"""


@dataclass(frozen=True, slots=True)
class RolloutRow:
    """One shown rollout. `label` is a step's number or a model's name."""

    label: str
    domain: str
    problem_id: str
    rollout_id: str
    sample_index: int
    status: str
    reason: str
    reward: float
    rewards: str
    """JSON object"""
    prompt: str
    response: str
    """decoded with special tokens"""
    cuts: list[int]
    """where the response goes over from what the policy wrote to what it was given, or back:
    positions of characters"""
    tokens: list[int]
    loss_mask: list[int]
    logprobs: list[float]
    weight_versions: list[int]
    trainer_logprobs: list[float]
    """before the update, 0 where nothing is trained; empty where the trainer did not score it"""
    session: str = ""
    """what a harness sent and what came back of it, as JSON; empty for other drivers"""


class Gallery:
    """Collects rows and writes them as Parquet. A row is encoded once, when it is added."""

    def __init__(self, chat: ChatFormat) -> None:
        self.chat = chat
        self._tables: list[pa.Table] = []
        self._later: list[tuple[str, Sequence[Sample], TrainerLogprobs]] = []

    def __len__(self) -> int:
        waiting = sum(len(samples) for _, samples, _ in self._later)
        return waiting + sum(table.num_rows for table in self._tables)

    def add(
        self, label: str, samples: Sequence[Sample], logprobs: TrainerLogprobs = NO_LOGPROBS
    ) -> None:
        """`logprobs` are the trainer's, of those samples that it scored."""
        self._tables.append(self._table(label, samples, logprobs))

    def add_later(
        self, label: str, samples: Sequence[Sample], logprobs: TrainerLogprobs = NO_LOGPROBS
    ) -> None:
        """They are encoded when the gallery is."""
        self._later.append((label, samples, logprobs))

    def take_in(self, rows: bytes) -> None:
        """Rows that another gallery encoded."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._tables.append(pq.read_table(pa.BufferReader(rows)))

    def _table(self, label: str, samples: Sequence[Sample], logprobs: TrainerLogprobs) -> pa.Table:
        import pyarrow as pa

        responses = [self._response(sample) for sample in samples]
        starts = [sample.num_prompt_tokens for sample in samples]
        shown = list(zip(samples, starts, strict=True))
        columns: dict[str, Any] = {
            "label": [label] * len(samples),
            "domain": [s.domain for s in samples],
            "problem_id": [s.problem_id for s in samples],
            "rollout_id": [s.rollout_id for s in samples],
            "sample_index": [s.sample_index for s in samples],
            "status": [str(s.status) for s in samples],
            "reason": [s.reason for s in samples],
            "reward": [s.reward for s in samples],
            "rewards": [json.dumps(s.rewards, sort_keys=True) for s in samples],
            "prompt": [self.chat.decode(s.tokens[:start]) for s, start in shown],
            "response": [text for text, _ in responses],
            "cuts": [cuts for _, cuts in responses],
            "tokens": [s.tokens for s in samples],
            "loss_mask": [s.loss_mask.view("int8") for s in samples],
            "logprobs": [s.logprobs for s in samples],
            "weight_versions": [s.weight_versions.of_each() for s in samples],
            "trainer_logprobs": [logprobs.get((s.rollout_id, s.branch), ()) for s in samples],
            "session": [_session(sample) for sample in samples],
        }
        return pa.table(columns, schema=_schema())

    def _response(self, sample: Sample) -> tuple[str, list[int]]:
        """Return its text, and the positions where the loss mask changes in it."""
        start, text, cuts = sample.num_prompt_tokens, "", list[int]()
        mask = sample.loss_mask[start:]
        edges = ((mask[1:] != mask[:-1]).nonzero()[0] + 1).tolist()
        for begin, end in pairwise([0, *edges, len(mask)]):
            text += self.chat.decode(sample.tokens[start + begin : start + end])
            cuts.append(len(text))
        return text, cuts[:-1]

    def add_step(
        self,
        label: str,
        groups: Sequence[Group],
        count: int = SHOWN_GROUPS,
        logprobs: TrainerLogprobs = NO_LOGPROBS,
    ) -> None:
        """Best and worst of `count` groups, spread over the step; groups with signal first."""
        self.add(label, best_and_worst(groups, count), logprobs)

    def take(self) -> Gallery:
        """The rows so far, to be written down; this gallery begins anew."""
        made = Gallery(self.chat)
        made._tables, self._tables = self._tables, []
        made._later, self._later = self._later, []
        return made

    def encoded(self) -> bytes:
        """The rows as a Parquet file."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        sink = pa.BufferOutputStream()
        pq.write_table(self._rows(), sink)
        return sink.getvalue().to_pybytes()

    def write(
        self,
        folder: Path,
        earlier: Iterable[bytes] = (),
        kept: str = "",
        is_kept: Callable[[str], bool] = bool,
    ) -> None:
        """Write `rollouts.parquet` into a folder: rows that were `encoded` earlier, if their label
        `is_kept`, then these. `kept` says which of all rollouts they are."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema = _schema().with_metadata({_STATEMENT: kept.encode()})
        with pq.ParquetWriter(folder / ROLLOUTS_FILE, schema) as file:
            for piece in earlier:
                table = pq.read_table(pa.BufferReader(piece)).cast(schema)
                shown = pa.array([is_kept(str(at)) for at in table["label"]], pa.bool_())
                file.write_table(table.filter(shown))
            for table in self._all_tables():
                file.write_table(table.cast(schema))

    def _rows(self) -> pa.Table:
        import pyarrow as pa

        return pa.concat_tables([_schema().empty_table(), *self._all_tables()])

    def _all_tables(self) -> list[pa.Table]:
        self._tables += [self._table(*later) for later in self._later]
        self._later = []
        return self._tables


def _session(sample: Sample) -> str:
    note = sample.metadata.get("session")
    return json.dumps(note) if note else ""


def _schema() -> pa.Schema:
    import pyarrow as pa

    kinds = {"sample_index": pa.int32(), "reward": pa.float64()} | {
        "cuts": pa.list_(pa.int32()),
        "tokens": pa.list_(pa.int32()),
        "loss_mask": pa.list_(pa.int8()),
        "logprobs": pa.list_(pa.float32()),
        "trainer_logprobs": pa.list_(pa.float32()),
        "weight_versions": pa.list_(pa.int32()),
    }
    return pa.schema([(f.name, kinds.get(f.name, pa.string())) for f in fields(RolloutRow)])


def relabelled(rows: bytes, labels: Mapping[str, str]) -> bytes:
    """Rows that a gallery encoded, with other labels."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(pa.BufferReader(rows))
    at = table.schema.get_field_index("label")
    changed = [labels.get(label, label) for label in table.column(at).to_pylist()]
    sink = pa.BufferOutputStream()
    pq.write_table(table.set_column(at, "label", pa.array(changed, pa.string())), sink)
    return sink.getvalue().to_pybytes()


def statement_of(file: Path) -> str:
    """Return which of all rollouts a `rollouts.parquet` has; empty where it does not say."""
    import pyarrow.parquet as pq

    return (pq.read_schema(file).metadata or {}).get(_STATEMENT, b"").decode()


def read_rollouts(file: Path) -> Iterator[RolloutRow]:
    """The rows of a `rollouts.parquet`, a few of them in memory at a time."""
    return (RolloutRow(**raw) for raw in ParquetRows(file).each())
