"""Run on the head of three hosts: trainer ranks on two, servers on two, one model between them.

    python -m tests.programs.hosts.on_head STORE -> one line of JSON (`Facts`)

The model is an artifact in the store, of which every host fetches its own copy.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from engines.devices.ray_cluster import connect
from engines.megatron.ranks.rank import TrainerJob
from engines.megatron.ranks.trainer_group import TrainerGroup
from engines.megatron.spec import Optimizer, Parallel, TrainerSettings
from engines.sglang.fleet import Fleet
from engines.sglang.spec import FleetSpec
from engines.types import Sampling
from infra.store.artifacts import ArtifactStore, StageCheckpoints
from infra.store.origins import Origin, note_origin
from infra.store.store import Store
from tests.parts.tiny import tiny_model

KIND, DIGEST = "base", "5" * 64
_PROMPT = [1, 2, 3]
_GREEDY = Sampling(8, temperature=0.0)


@dataclass(frozen=True, slots=True)
class Facts:
    rank_hosts: list[str]
    """addresses, in the order of the ranks"""
    server_hosts: list[str]
    checkpoint_files: list[str]
    """that the head has after a save into a folder of its own"""
    files_through_head: list[str]
    """of a checkpoint that goes to the store: those that the head has to put there"""
    stored_files: list[str]
    """all that is there then"""
    exported_equal: bool
    """whether what was exported after save and load generates what the model did"""
    transport: str
    versions: list[str]
    """that servers serve after a publish"""
    checksums: list[str]
    """of the weights that they hold then"""


async def look(store: Store, work: Path) -> Facts:
    model = _stored_model(store, work)
    job = TrainerJob(TrainerSettings(), Optimizer(lr=1e-3), Parallel(dp=2), model, 0, 10)
    async with await TrainerGroup.lease(job, 2, "hosts") as trainer:
        await trainer.save(work / "checkpoint")
        await trainer.load(work / "checkpoint")
        through_head, stored = await _store_checkpoint(trainer, store, work / "scratch")
        await trainer.export(work / "exported", model)
        async with await Fleet.lease(FleetSpec(), model, 2, 1, 2, "hosts") as fleet:
            before = await fleet.client.generate(_PROMPT, _GREEDY)
            report = await trainer.publish(fleet.server_urls, 1)
            versions, checksums = await fleet.versions(), await fleet.checksums()
            after = await fleet.client.generate(_PROMPT, _GREEDY)
            return Facts(
                rank_hosts=trainer.hosts,
                server_hosts=[url.split("//")[1].split(":")[0] for url in fleet.server_urls],
                checkpoint_files=sorted(file.name for file in (work / "checkpoint").iterdir()),
                files_through_head=through_head,
                stored_files=stored,
                exported_equal=before.token_ids.tolist() == after.token_ids.tolist(),
                transport=report.transport,
                versions=sorted(versions.values()),
                checksums=sorted(checksums.values()),
            )


async def _store_checkpoint(
    trainer: TrainerGroup, store: Store, scratch: Path
) -> tuple[list[str], list[str]]:
    """As a stage does, and load it again; what the head had of it, and all of it."""
    checkpoints = StageCheckpoints(store, "rl", DIGEST, 1, scratch)
    folder = scratch / "checkpoint-1"
    folder.mkdir(parents=True)
    checkpoints.begin(1, folder)
    await trainer.save(folder / "trainer")
    through_head = [file.name for file in (folder / "trainer").iterdir()]
    checkpoints.save(1, folder)
    found = checkpoints.latest()
    if found is None:
        raise RuntimeError("the checkpoint is not in the store")
    await trainer.load(found[1] / "trainer")
    return sorted(through_head), sorted(file.name for file in (found[1] / "trainer").iterdir())


def _stored_model(store: Store, work: Path) -> Path:
    """A job's input: the artifact's copy on this host."""
    artifacts = ArtifactStore(store)
    made = artifacts.commit(
        KIND, DIGEST, 1, tiny_model(work / "made"), identity={}, inputs={}, code={}, metrics={},
        seeds={}, mlflow_run_id="", seconds=0.0,
    )  # fmt: skip
    folder = artifacts.local(made)
    note_origin(folder, Origin(root=store.root, kind=KIND, digest=DIGEST))
    return folder


if __name__ == "__main__":
    connect()
    print(json.dumps(asdict(asyncio.run(look(Store(sys.argv[1]), Path("/tmp/work"))))))
