"""The supervised body around a trainer that only remembers: order, checkpoints, stop, resume."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from engines.batching import TokenSequence
from engines.families.common.model_config import read_config, read_rope
from engines.families.common.tensors import SINGLE
from engines.megatron.ranks.rank import TrainerJob
from engines.megatron.ranks.trainer_group import TrainerGroup
from infra.errors import EngineError, InputError, TrainingStopped
from infra.store.artifacts import StageCheckpoints
from infra.store.store import Store
from tasks.mid_training import body as mid_training
from tasks.mid_training.spec import MidTrainingSpec
from tasks.sft.body import run
from tasks.sft.spec import SftSpec
from tasks.stage import StageContext, Stopped
from tasks.training_record import Updates
from tests.parts.chat_parts import random_base
from tests.parts.stage_parts import ListReporter, stage_context

pytestmark = pytest.mark.unit

STEPS, BATCH = 23, 3


class MemoryTrainer:
    """Its weights are the batches it has seen."""

    def __init__(self) -> None:
        self.seen: list[list[list[int]]] = []
        self.calls: list[int] = []
        self.released = False
        self.context: StageContext | None = None
        self.job: TrainerJob | None = None
        self.stop_at = STEPS
        self.fail_at = STEPS + 1
        self.change = 1.0
        """of each weight, by the end"""

    async def sft_steps(self, batches: Sequence[Sequence[TokenSequence]]) -> list[dict[str, float]]:
        self.calls.append(len(batches))
        for batch in batches:
            self.seen.append([s.tokens for s in batch])
        if len(self.seen) >= self.fail_at:
            raise EngineError("a rank died")
        if len(self.seen) >= self.stop_at:
            assert self.context is not None
            self.context.stop.requested = True
        return [{"loss": 1.0, "tokens": 10.0, "seconds": 0.5} for _ in batches]

    async def begin_save(self, folder: Path) -> None:
        folder.mkdir()
        (folder / "seen.json").write_text(json.dumps(self.seen))

    async def saved(self) -> None:
        return None

    async def load(self, folder: Path) -> None:
        self.seen = json.loads((folder / "seen.json").read_text())

    async def export(self, folder: Path, source: Path) -> None:
        (folder / "seen.json").write_text(json.dumps(self.seen))
        stored = load_file(source / SINGLE)
        changed = {name: tensor + self.change for name, tensor in stored.items()}
        save_file(changed, folder / SINGLE, metadata={"format": "pt"})

    async def release(self) -> None:
        self.released = True


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_base(tmp_path_factory.mktemp("base"))


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> MemoryTrainer:
    trainer = MemoryTrainer()

    async def lease(job: TrainerJob, **_: Any) -> MemoryTrainer:
        assert job.total_steps == STEPS
        trainer.job = job
        return trainer

    monkeypatch.setattr(TrainerGroup, "lease", lease)
    return trainer


def spec(**settings: Any) -> SftSpec:
    return SftSpec.model_validate(
        {
            "settings": {
                "steps": STEPS,
                "batch_size": BATCH,
                "demonstrations": 20,
                "optimizer": {"lr": 1e-3},
                "checkpoint_every": 5,
                **settings,
            },
            "curriculum": {"name": "reasoning"},
        }
    )


def context(root: Path, model: Path, trainer: MemoryTrainer) -> StageContext:
    made = stage_context(root, "reasoning-sft", {"model": model})
    trainer.context = made
    return made


def train(root: Path, model: Path, trainer: MemoryTrainer) -> dict[str, float]:
    return asyncio.run(run(spec(), context(root, model, trainer)))


def test_every_step_is_trained_and_reported_once(
    tmp_path: Path, model: Path, trainer: MemoryTrainer
):
    around = context(tmp_path, model, trainer)
    metrics = asyncio.run(run(spec(), around))
    assert isinstance(around.reporter, ListReporter)
    assert sorted(around.reporter.steps) == list(range(1, STEPS + 1))
    assert [len(batch) for batch in trainer.seen] == [BATCH] * STEPS
    assert metrics["steps"] == STEPS
    assert metrics["sequences"] == 20
    assert metrics["train_tokens_per_s"] == 20.0
    assert trainer.released


@pytest.mark.parametrize("change", [0.0, 1e-12], ids=["none", "too small for float32"])
def test_a_stage_that_changed_no_weight_ends_with_the_reason(
    tmp_path: Path, model: Path, trainer: MemoryTrainer, change: float
):
    trainer.change = change
    with pytest.raises(TrainingStopped, match=r"no weight differs .* Raise `optimizer\.lr`"):
        train(tmp_path, model, trainer)


def test_a_stage_that_changed_few_weights_says_so():
    reporter, updates = ListReporter(), Updates()
    updates.observe({"grad_norm": 1.0})
    updates.require_change(0.002, reporter)
    assert reporter.kept == []
    updates.require_change(0.0005, reporter)
    (kept,) = reporter.kept
    assert kept.what == "only 0.0005 of the model's weights changed in 1 updates"


def test_one_call_trains_several_steps_but_never_over_a_checkpoint(
    tmp_path: Path, model: Path, trainer: MemoryTrainer
):
    train(tmp_path, model, trainer)
    assert {5, 10, 15, 20, STEPS} <= set(accumulate(trainer.calls))
    assert len(trainer.calls) < STEPS


class SlowStore(Store):
    """Its first checkpoint becomes visible only when training has gone on."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.went_on = threading.Event()

    def write(self, path: str, data: bytes, *, sync: bool = False) -> None:
        if path.endswith("step-00000005-a1/manifest.json"):
            assert self.went_on.wait(30), "training waited for the store"
        super().write(path, data, sync=sync)


class TellingReporter(ListReporter):
    """Lets the store go on when the step after its first checkpoint is over."""

    went_on: threading.Event

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        super().metrics(step, values)
        if step == 6:
            self.went_on.set()


def test_training_goes_on_while_a_slow_store_takes_a_checkpoint(
    tmp_path: Path, model: Path, trainer: MemoryTrainer
):
    around = context(tmp_path, model, trainer)
    store, reporter = SlowStore(f"file://{tmp_path / 'store'}"), TellingReporter()
    around.reporter, reporter.went_on = reporter, store.went_on
    around.checkpoints = StageCheckpoints(store, "sft", "0" * 64, 1, around.scratch)
    metrics = asyncio.run(run(spec(), around))
    assert metrics["steps"] == STEPS
    assert metrics["checkpoint_seconds"] > 0
    found = around.checkpoints.latest()
    assert found is not None
    step, folder = found
    assert step == 20
    assert len(json.loads((folder / "trainer" / "seen.json").read_text())) == 20


def test_stopped_mid_training_resumes_with_its_sequences_and_its_new_positions(
    tmp_path: Path, model: Path, trainer: MemoryTrainer
):
    texts = [{"text": "ant bed " * (number % 30 + 1)} for number in range(200)]
    (tmp_path / "texts.jsonl").write_text("\n".join(map(json.dumps, texts)))
    made = MidTrainingSpec.model_validate(
        {
            "settings": {
                "steps": STEPS,
                "sequence_length": 1024,
                "batch_size": BATCH,
                "optimizer": {"lr": 1e-3},
                "rope": {"positions": 1024, "theta": 1e6},
                "data": {"files": [f"{tmp_path}/texts.jsonl"]},
                "checkpoint_every": 5,
            }
        }
    )

    def mid_train(root: Path) -> dict[str, float]:
        return asyncio.run(mid_training.run(made, context(root, model, trainer)))

    metrics = mid_train(tmp_path / "whole")
    assert trainer.job is not None
    assert metrics["packed_sequences"] == STEPS * BATCH
    assert metrics["packing_efficiency"] > 0.98
    tokens = sum(len(piece) for batch in trainer.seen for piece in batch)
    assert metrics["tokens_of_data_0"] == tokens
    undisturbed, trainer.seen, trainer.stop_at = trainer.seen, [], 8
    with pytest.raises(Stopped, match="after step 10"):
        mid_train(tmp_path / "cut")
    trainer.seen, trainer.stop_at = [], STEPS
    assert mid_train(tmp_path / "cut")["packing_efficiency"] == metrics["packing_efficiency"]
    assert trainer.seen == undisturbed
    config = read_config(trainer.job.model)
    assert config["max_position_embeddings"] == 1024
    assert read_rope(config).theta == 1e6
    assert read_config(model)["max_position_embeddings"] == 512


def test_a_stopped_stage_resumes_with_the_batches_it_would_have_had(
    tmp_path: Path, model: Path, trainer: MemoryTrainer
):
    train(tmp_path / "whole", model, trainer)
    undisturbed, trainer.seen = trainer.seen, []
    trainer.stop_at = 8
    with pytest.raises(Stopped, match="after step 10"):
        train(tmp_path / "cut", model, trainer)
    trainer.seen, trainer.stop_at = [], STEPS
    metrics = train(tmp_path / "cut", model, trainer)
    assert trainer.seen == undisturbed
    assert metrics["steps"] == STEPS
    assert metrics["train_seconds"] == pytest.approx(STEPS * 0.5)


def test_a_stage_on_files_resumes_where_they_stood_and_names_what_it_left_out(
    tmp_path: Path, model: Path, trainer: MemoryTrainer
):
    rows = [
        {"conversations": [{"from": "human", "value": f"{n}"}, {"from": "gpt", "value": "red"}]}
        for n in range(20)
    ]
    lines = ["{", *map(json.dumps, rows)]
    (tmp_path / "chats.jsonl").write_text("\n".join(lines))
    data = {"files": [str(tmp_path / "chats.jsonl")], "max_bad_share": 0.1}
    on_files = SftSpec.model_validate({"settings": spec(data=data).settings})
    whole = context(tmp_path / "whole", model, trainer)
    metrics = asyncio.run(run(on_files, whole))
    assert (metrics["rows"], metrics["rows_read"], metrics["bad_rows_not_json"]) == (21, 21, 1)
    assert isinstance(whole.reporter, ListReporter)
    assert [line.split(": ")[1] for line in whole.reporter.warnings] == ["chats.jsonl:1"]
    undisturbed, trainer.seen = trainer.seen, []
    trainer.stop_at = 8
    with pytest.raises(Stopped, match="after step 10"):
        asyncio.run(run(on_files, context(tmp_path / "cut", model, trainer)))
    trainer.seen, trainer.stop_at = [], STEPS
    again = asyncio.run(run(on_files, context(tmp_path / "cut", model, trainer)))
    assert trainer.seen == undisturbed
    assert again == {**metrics, **{k: v for k, v in again.items() if k.endswith("seconds")}}


def test_after_a_crash_training_goes_on_from_the_last_checkpoint(
    tmp_path: Path, model: Path, trainer: MemoryTrainer
):
    trainer.fail_at = 14
    with pytest.raises(EngineError, match="a rank died"):
        train(tmp_path, model, trainer)
    assert trainer.released
    trainer.fail_at, trainer.calls = STEPS + 1, []
    train(tmp_path, model, trainer)
    assert sum(trainer.calls) == STEPS - 10


def test_a_stage_without_its_input_is_refused(tmp_path: Path, trainer: MemoryTrainer):
    around = stage_context(tmp_path, "unified-sft", {})
    with pytest.raises(InputError, match="no input model"):
        asyncio.run(run(spec(), around))
