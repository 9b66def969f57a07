"""A checkpoint continues training exactly, and in another layout too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engines.megatron.spec import Parallel
from infra.errors import InputError
from tests.integration.megatron.megatron_models import make_model, sequences
from tests.integration.megatron.megatron_ranks import EACH_LAYOUT, Ranks, TrainerArgs

pytestmark = pytest.mark.integration

LENGTHS = [20, 7, 13, 9]


def batches(first: int, last: int) -> list[Any]:
    return [sequences(LENGTHS, seed) for seed in range(first, last)]


def weights(trainer: Any) -> dict[str, np.ndarray]:
    return {name: t.detach().cpu().numpy().copy() for name, t in trainer.hf_tensors()}


def train_and_save(trainer: Any, folder: Path) -> dict[str, Any]:
    """Three steps with a checkpoint after each, and two more while the last one is written."""
    for step in (1, 2, 3):
        trainer.sft_steps(batches(step - 1, step))
        trainer.begin_save(folder.with_name(f"step-{step}"))
    trained = {"metrics": trainer.sft_steps(batches(3, 5)), "weights": weights(trainer)}
    trainer.finish_save(wait=True)
    return trained


def load_and_train(trainer: Any, folder: Path, again: Path) -> dict[str, Any]:
    """Two more steps, once what was loaded is saved again in another folder."""
    trainer.load(folder)
    done = trainer.steps_done
    trainer.save(again)
    changed = different_tensors(folder, again)
    metrics = trainer.sft_steps(batches(3, 5))
    return {
        "steps_done": done,
        "changed": changed,
        "metrics": metrics,
        "weights": weights(trainer),
    }


def different_tensors(first: Path, second: Path) -> list[str]:
    """Of weights and optimizer state, which are not the same to the bit, whoever wrote which part;
    called on all ranks."""
    import torch
    from megatron.core.dist_checkpointing import load_plain_tensors

    one, two = (load_plain_tensors(str(folder)) for folder in (first, second))
    moments = [name for name in one if name.startswith("optimizer.state.exp_avg")]
    assert any(one[name].any() for name in moments)
    tensors = [name for name, value in one.items() if isinstance(value, torch.Tensor)]
    assert one.keys() == two.keys()
    return [name for name in tensors if not torch.equal(one[name], two[name])]


def load_and_random(trainer: Any, folder: Path) -> tuple[float, float]:
    """A random number after loading, and one after loading again."""
    import torch

    trainer.load(folder)
    first = torch.rand(()).item()
    trainer.load(folder)
    return first, torch.rand(()).item()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make_model("qwen3", folder)
    return folder


@dataclass(frozen=True, slots=True)
class Saved:
    """A run that nobody interrupted, and what it left."""

    model: Path
    folder: Path
    """the checkpoint after step 3"""
    whole: dict[str, Any]


SavedRun = Callable[[str, Parallel], Saved]


@pytest.fixture(scope="module")
def saved_run(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> SavedRun:
    """The run of a family in a layout, made once for all that continue it."""

    @cache
    def made(family: str, parallel: Parallel) -> Saved:
        root = tmp_path_factory.mktemp("saved")
        model, folder = root / "model", root / "step-3"
        make_model(family, model)
        return Saved(model, folder, ranks.run(train_and_save, TrainerArgs(model, parallel), folder))

    return made


def test_resuming_in_the_same_layout_repeats_the_run_to_the_bit(
    ranks: Ranks, saved_run: SavedRun, tmp_path: Path
) -> None:
    saved = saved_run("qwen3", Parallel())
    whole, args = saved.whole, TrainerArgs(saved.model, seed=99)
    resumed = ranks.run(load_and_train, args, saved.folder, tmp_path / "again")
    assert (resumed["steps_done"], resumed["changed"]) == (3, [])
    for a, b in zip(resumed["metrics"], whole["metrics"], strict=True):
        assert (a["loss"], a["grad_norm"], a["lr"]) == (b["loss"], b["grad_norm"], b["lr"])
    for name, tensor in whole["weights"].items():
        assert np.array_equal(resumed["weights"][name], tensor), name


def test_random_states_come_back_with_the_checkpoint(ranks: Ranks, saved_run: SavedRun) -> None:
    saved = saved_run("qwen3", Parallel())
    first, again = ranks.run(load_and_random, TrainerArgs(saved.model), saved.folder)
    assert first == again


@pytest.mark.parametrize(
    ("saved", "loaded"),
    [
        (Parallel(tp=2), Parallel()),
        (Parallel(), Parallel(tp=2)),
        (Parallel(pp=2), Parallel()),
        (Parallel(dp=2), Parallel()),
        (Parallel(pp=2), Parallel(dp=2)),
    ],
    ids=["tp2-to-1", "1-to-tp2", "pp2-to-1", "dp2-to-1", "pp2-to-dp2"],
)
def test_another_layout_continues_the_run(
    saved: Parallel, loaded: Parallel, ranks: Ranks, saved_run: SavedRun, tmp_path: Path
) -> None:
    run = saved_run("qwen3", saved)
    whole, args = run.whole, TrainerArgs(run.model, loaded)
    resumed = ranks.run(load_and_train, args, run.folder, tmp_path / "again")
    assert resumed["changed"] == []
    for a, b in zip(resumed["metrics"], whole["metrics"], strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-4)
        assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=1e-4)
        assert a["lr"] == b["lr"]
    for name, tensor in whole["weights"].items():
        assert np.abs(resumed["weights"][name] - tensor).max() < 1e-4, name


@pytest.mark.parametrize(
    ("saved", "loaded"),
    [(Parallel(tp=2), Parallel()), (Parallel(), Parallel(tp=2, pp=2))],
    ids=["tp2-to-1", "1-to-tp2-pp2"],
)
def test_what_a_delta_net_has_in_one_matrix_is_stored_part_by_part(
    saved: Parallel, loaded: Parallel, ranks: Ranks, saved_run: SavedRun, tmp_path: Path
) -> None:
    """A tensor-parallel rank has a share of every part: its rows are no slice of the whole."""
    run = saved_run("qwen3_5_text", saved)
    args = TrainerArgs(run.model, loaded)
    resumed = ranks.run(load_and_train, args, run.folder, tmp_path / "again")
    assert resumed["changed"] == []
    for a, b in zip(resumed["metrics"], run.whole["metrics"], strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-4)
        assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=1e-4)
    for name, tensor in run.whole["weights"].items():
        assert np.abs(resumed["weights"][name] - tensor).max() < 1e-4, name


# gpt-oss has all experts of a layer in one tensor, and others each in its own.
CONTINUED = ["glm4_moe", "gpt_oss", *(["deepseek_v3"] if EACH_LAYOUT else [])]


@pytest.mark.parametrize(
    ("saved", "loaded"),
    [
        (Parallel(dp=2, ep=2), Parallel(dp=2, ep=2)),
        (Parallel(dp=2, ep=2), Parallel()),
        (Parallel(), Parallel(tp=2, ep=2, etp=1)),
    ],
    ids=["ep2-to-ep2", "ep2-to-1", "1-to-tp2-ep2"],
)
@pytest.mark.parametrize("family", CONTINUED)
def test_ranks_that_share_out_experts_continue_the_run_of_others(
    saved: Parallel,
    loaded: Parallel,
    family: str,
    ranks: Ranks,
    saved_run: SavedRun,
    tmp_path: Path,
) -> None:
    run = saved_run(family, saved)
    whole, args = run.whole, TrainerArgs(run.model, loaded, seed=99)
    resumed = ranks.run(load_and_train, args, run.folder, tmp_path / "again")
    assert resumed["changed"] == []
    bound = 0.0 if saved == loaded else 1e-4
    for a, b in zip(resumed["metrics"], whole["metrics"], strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=bound, abs=0)
        assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=bound, abs=0)
    for name, tensor in whole["weights"].items():
        assert np.abs(resumed["weights"][name] - tensor).max() <= bound, name


def test_experts_of_later_stages_alone_continue_the_run_to_the_bit(
    ranks: Ranks, saved_run: SavedRun, tmp_path: Path
) -> None:
    """Rank 0, which writes how many steps the optimizers made, updates none of them."""
    parallel = Parallel(pp=2, dp=2, ep=2)
    run = saved_run("glm4_moe-late", parallel)
    args = TrainerArgs(run.model, parallel, seed=99)
    resumed = ranks.run(load_and_train, args, run.folder, tmp_path / "again")
    assert resumed["changed"] == []
    for name, tensor in run.whole["weights"].items():
        assert np.array_equal(resumed["weights"][name], tensor), name


def test_a_folder_without_a_checkpoint_is_refused(
    ranks: Ranks, model: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="holds no training checkpoint"):
        ranks.run(load_and_train, TrainerArgs(model), tmp_path, tmp_path / "again")


def save_untrained(trainer: Any, folder: Path) -> dict[str, np.ndarray]:
    trainer.save(folder)
    return weights(trainer)


def load_only(trainer: Any, folder: Path) -> tuple[int, dict[str, np.ndarray]]:
    trainer.load(folder)
    return trainer.steps_done, weights(trainer)


def test_a_checkpoint_before_the_first_step_is_whole(
    ranks: Ranks, model: Path, tmp_path: Path
) -> None:
    """A stage may have to leave one: every group of its first steps can be without signal."""
    saved = ranks.run(save_untrained, TrainerArgs(model), tmp_path / "step-0")
    steps_done, loaded = ranks.run(load_only, TrainerArgs(model, seed=99), tmp_path / "step-0")
    assert steps_done == 0
    for name, tensor in saved.items():
        assert np.array_equal(loaded[name], tensor), name
