"""What a checkpoint holds: every attribute of every object that lives through a training loop.

    trainer/           Megatron's distributed checkpoint: weights, optimizer, schedule, step count
                       and every rank's random states (torch, numpy, python, Megatron's)
    critic/            the same of the critic's ranks, where the algorithm has a critic
    state.json         where the stage stands: see `tasks.rl.record`, `tasks.sft.record`
    buffer.bin         batches that are sampled and not yet trained on, and surplus groups: with
                       `max_staleness` they are of weights that no checkpoint has (rl)
    rollouts.parquet   the rollouts shown so far (rl)
    notes/step-<s>/    beside the checkpoints: every finished rollout of the steps after them; it is
                       all that `distill` and `evaluate` keep, a step for each model

An attribute is either in one of these, or is made again from the spec, or needs nothing because it
is empty when a checkpoint is taken. `test_checkpoint_contents.py` reads the sources and fails when
an object of the loop has an attribute that is not listed here, or the other way round. Sampling
seeds are no state: they follow from stage seed, problem id, sample index, policy version and turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Where = Literal[
    "trainer",
    "state.json",
    "buffer.bin",
    "rollouts.parquet",
    "notes",
    "spec",
    "handle",
    "empty",
]
"""`trainer`: in `trainer/` or `critic/`, by role. `spec`: made again from the stage's spec.
`handle`: a reference to another object or process.
`empty`: holds nothing when a checkpoint is taken"""

CONTENTS: Mapping[str, Mapping[str, Where]] = {
    "engines/megatron/train/training.py:Training": {
        "_model": "spec",
        "network": "trainer",
        "_ddp": "trainer",
        "_optimizer": "trainer",
        "_scheduler": "trainer",
        "steps_done": "trainer",
        "scored_flops": "empty",
        "_asleep": "empty",
        "spec": "spec",
        "seed": "spec",
        "layout": "spec",
        "shape": "spec",
        "config": "spec",
        "_optimizer_spec": "spec",
        "_run_schedule": "handle",
    },
    "engines/megatron/train/trainer.py:RlTrainer": {
        "_reference": "spec",
        "teachers": "spec",
        "_transport": "handle",
    },
    "engines/megatron/train/critic.py:CriticTrainer": {"_critic": "spec"},
    "tasks/rl/record.py:RlRecord": {
        "step": "state.json",
        "version": "state.json",
        "cursor": "state.json",
        "_totals": "state.json",
        "_kept": "state.json",
        "_unsaved": "state.json",
        "_watch": "handle",
        "_gallery": "handle",
        "_reporter": "handle",
        "_steps": "spec",
        "solved": "empty",
    },
    "tasks/sft/record.py:SftRecord": {
        "step": "state.json",
        "_losses": "state.json",
        "_tokens": "state.json",
        "_seconds": "state.json",
        "_checkpoint_seconds": "state.json",
        "_unsaved": "state.json",
        "_reporter": "handle",
        "_steps": "spec",
    },
    "tasks/saving.py:Saving": {
        "_snapshot": "empty",
        "_save": "empty",
        "_checkpoints": "handle",
        "_blocked": "handle",
        "_scratch": "spec",
    },
    "engines/rollout/bounds.py:StopRule": {
        "outcomes": "state.json",
        "entropies": "state.json",
        "solved_reward": "spec",
        "min_outcome": "spec",
        "max_entropy": "spec",
        "max_failed_share": "spec",
    },
    "engines/rollout/records/gallery.py:Gallery": {
        "_tables": "rollouts.parquet",
        "_chat": "handle",
    },
    "engines/rollout/source.py:ProblemSource": {
        "_turn": "state.json",
        "_starts": "state.json",
        "_domains": "spec",
        "_split": "spec",
        "_seed": "spec",
    },
    "engines/rollout/producer.py:Producer": {
        "source": "handle",
        "_roller": "handle",
        "_journal": "handle",
        "_wanted": "spec",
        "_group_size": "spec",
        "_oversample": "spec",
        "_rounds": "spec",
        "_temperature": "spec",
        "_needs_spread": "spec",
    },
    "engines/rollout/records/journal.py:RolloutJournal": {
        "_notes": "notes",
        "_every_s": "spec",
        "_waiting": "empty",
        "_failure": "empty",
        "_writing": "empty",
        "_hurry": "empty",
    },
    "engines/rollout/buffer.py:RolloutBuffer": {
        "_version": "state.json",
        "max_staleness": "spec",
        "_ready": "buffer.bin",
        "_surplus": "buffer.bin",
    },
    "engines/rollout/batch.py:StepBatch": {
        "version": "buffer.bin",
        "groups": "buffer.bin",
        "rolled": "buffer.bin",
        "wanted": "buffer.bin",
        "reused": "buffer.bin",
        "dropped": "buffer.bin",
        "rounds": "buffer.bin",
        "seconds": "buffer.bin",
        "cursor": "buffer.bin",
        "recovered": "buffer.bin",
        "agreement": "buffer.bin",
    },
    "engines/rollout/consumer.py:Consumer": {
        "_version": "state.json",
        "_trainer": "handle",
        "_put": "handle",
        "_algorithm": "spec",
        "_critic": "handle",
        "_critic_only_steps": "spec",
    },
    "engines/rollout/published_policy.py:PublishedPolicy": {
        "_version": "state.json",
        "_trainer": "handle",
        "_servers": "handle",
        "_publishing": "empty",
        "_repairing": "empty",
    },
    "engines/rollout/conversation.py:Conversation": {
        "_environment": "handle",
        "_max_turns": "spec",
    },
    "engines/rollout/roller.py:Roller": {
        "_generate": "handle",
        "_chat": "handle",
        "_context_length": "spec",
        "_seed": "spec",
    },
}

WITHIN_A_STEP = (
    "engines/rollout/consumer.py:StepResult",
    "engines/rollout/session.py:TokenSession",
    "engines/rollout/session_host.py:SessionHost",
)
"""objects that no step passes to the next"""
