"""What a checkpoint holds: every attribute of every object that lives through a training loop.

    trainer/           Megatron's distributed checkpoint: weights, optimizer, schedule, step count
                       and every rank's random states (torch, numpy, python, Megatron's)
    critic/            the same of the critic's ranks, where the algorithm has a critic
    state.json         where the stage stands: see `tasks.rl.stage_record`, `tasks.sft.body`
    buffer.bin         groups that are sampled and not yet trained on: with `max_staleness` they are
                       of weights that no checkpoint has (rl)
    tickets.json       which tickets were drawn, which of them are still to be rolled, and how much
                       a data source of its own was told; where phases began (rl)
    temperature.json   the temperature and, of one that is searched for, why a search is due and
                       what each found (rl, with a `temperature_search`)
    taken.json         which groups of buffer.bin were trained on and may be again (rl, with a
                       buffer of its own)
    timeline.jsonl     what took place when, for the stage's trace (rl)
    last_steps/        all rollouts of the last steps, to browse (rl)
    rollouts/<n>/      beside the checkpoints: every finished rollout since them, by ticket; it is
                       all that `distill` and `evaluate` keep, a number for each model
    turns/<n>/         beside the checkpoints: turns of rollouts that are not finished, by ticket
                       (rl)
    takes/<s>/         beside the checkpoints: the tickets that step s trains on (rl)
    trained/<s>/       beside the checkpoints: their rollouts, with `keep_rollouts` (rl)
    shown/<s>/         beside the checkpoints: rollouts to browse, of the steps up to s since the
                       checkpoint before it (rl)
    told/<k>/          beside the checkpoints: what a data source of its own was told after its
                       first k results, up to the next checkpoint (rl)

An attribute is either in one of these, or is made again from the spec, or needs nothing because it
is empty when a checkpoint is taken. `test_checkpoint_contents.py` reads the sources and fails when
an object of the loop has an attribute that is not listed here, or the other way round. Sampling
seeds are no state: they follow from stage seed, ticket, sample index, session and turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Where = Literal[
    "trainer",
    "state.json",
    "buffer.bin",
    "taken.json",
    "tickets.json",
    "temperature.json",
    "timeline.jsonl",
    "last_steps",
    "notes",
    "spec",
    "handle",
    "empty",
    "lost",
]
"""`trainer`: in `trainer/` or `critic/`, by role. `spec`: made again from the stage's spec.
`handle`: a reference to another object or process.
`empty`: holds nothing when a checkpoint is taken. `lost`: what the step under way would have
reported of rollouts that were finished before the checkpoint, and an evaluation under way: it is
made again; rollout workers, which hold no more than tickets under way; what figures were lately,
which only a warning needs"""


def _all(names: str, where: Where) -> dict[str, Where]:
    return dict.fromkeys(names.split(), where)


CONTENTS: Mapping[str, Mapping[str, Where]] = {
    "engines/megatron/train/training.py:Training": {
        "_model": "spec",
        "network": "trainer",
        "_routers": "handle",
        "_ddp": "trainer",
        "_optimizer": "trainer",
        "_scheduler": "trainer",
        "steps_done": "trainer",
        "scored_flops": "empty",
        "_asleep": "empty",
        "_waiting_room": "empty",
        "_writing": "handle",
        "_state": "trainer",
        "spec": "spec",
        "seed": "spec",
        "critic": "spec",
        "layout": "spec",
        "shape": "spec",
        "config": "spec",
        "_optimizer_spec": "spec",
        "_run_schedule": "handle",
    },
    "engines/megatron/rl/trainer.py:RlTrainer": {
        "_reference": "spec",
        "teachers": "spec",
        "_transport": "handle",
    },
    "tasks/rl/stage_record.py:RlRecord": {
        **_all("_alarms", "lost"),
        **_all("step version _shown _totals _sums _shown_evaluations", "state.json"),
        **_all("_unsaved _held_out _is_cut_short series counts updates verdicts", "state.json"),
        **_all("_notes _watch _gallery _last_steps _reporter temperatures", "handle"),
        **_all("_steps", "spec"),
        **_all("solved", "empty"),
    },
    "tasks/rl/phases.py:Rise": {"best": "tickets.json", "flat": "tickets.json"},
    "tasks/rl/phases.py:PhasedTickets": {
        **_all("_phases _domains_of", "spec"),
        **_all("_starts _rise _scored moves", "tickets.json"),
    },
    "tasks/rl/temperature.py:Rewards": {"outcomes": "temperature.json"},
    "tasks/rl/temperature.py:TemperatureControl": {"temperature": "temperature.json"},
    "tasks/rl/temperature.py:EntropyControl": {
        "_settings": "spec",
        "temperature": "temperature.json",
    },
    "tasks/rl/temperature.py:SearchControl": {
        **_all("_settings", "spec"),
        **_all("_scores _notes", "handle"),
        **_all("_rewards _due temperature searches", "temperature.json"),
    },
    "tasks/rl/evaluation.py:EvaluationSchedule": {
        **_all("_record _evaluator _pulse _reporter _policy", "handle"),
        **_all("_every", "spec"),
        **_all("_begun", "lost"),
    },
    "engines/rollout/evaluator.py:Evaluator": {
        "_roller": "handle",
        "_held_out": "spec",
        "_name": "spec",
        "_samples": "spec",
        "_temperature": "spec",
        "_keep": "spec",
        "_timeout_s": "spec",
        "_running": "lost",
        "_rolls": "lost",
        "_got_on": "lost",
    },
    "infra/timeline.py:Timeline": {
        "most": "spec",
        "part": "timeline.jsonl",
        "dropped": "timeline.jsonl",
        "_events": "timeline.jsonl",
        "_points": "timeline.jsonl",
        "_apart": "timeline.jsonl",
        "_open": "empty",
    },
    "tasks/sft/body.py:SftRecord": {
        "step": "state.json",
        "_last": "state.json",
        "_tokens": "state.json",
        "_seconds": "state.json",
        "_checkpoint_seconds": "state.json",
        "_unsaved": "state.json",
        "series": "state.json",
        "updates": "state.json",
        "_reporter": "handle",
        "_steps": "spec",
        "_no_gradient": "spec",
    },
    "tasks/training_record.py:Series": {"_names": "spec", "_points": "state.json"},
    "tasks/rl/counts.py:Sums": dict.fromkeys(
        ("count", "total", "most", "first", "last"), "state.json"
    ),
    "tasks/rl/counts.py:RlCounts": {"_rollouts": "state.json", "_groups": "state.json"},
    "tasks/training_record.py:Updates": {
        "made": "state.json",
        "skipped": "state.json",
        "idle": "lost",
        "_without_gradient": "state.json",
    },
    "tasks/domain_verdicts.py:Judged": dict.fromkeys(
        ("ended", "reasons", "low", "high", "outcomes", "groups", "flat"), "state.json"
    ),
    "tasks/domain_verdicts.py:Verdicts": {"_domains": "state.json"},
    "tasks/saving.py:Saving": {
        "_snapshot": "empty",
        "_save": "empty",
        "_checkpoints": "handle",
        "_blocked": "handle",
        "_scratch": "spec",
    },
    "engines/rollout/metrics.py:Alarms": {"_seen": "lost", "_told": "lost"},
    "engines/rollout/metrics.py:StopRule": {
        "outcomes": "state.json",
        "entropies": "state.json",
        "solved_reward": "spec",
        "min_outcome": "spec",
        "max_entropy": "spec",
        "max_failed_share": "spec",
    },
    "engines/rollout/records/gallery.py:Gallery": {
        "_tables": "notes",
        "_later": "empty",
        "chat": "handle",
    },
    "engines/rollout/records/last_steps.py:_Step": {
        "number": "last_steps",
        "tokens": "last_steps",
        "shown_tokens": "last_steps",
        "sample": "last_steps",
        "whole": "last_steps",
        "_written": "last_steps",
    },
    "engines/rollout/records/last_steps.py:LastSteps": {
        "chat": "handle",
        "steps": "spec",
        "most_tokens": "spec",
        "earlier": "handle",
        "_kept": "last_steps",
    },
    "engines/rollout/records/gallery.py:ShownSteps": {
        "one_in": "state.json",
        "tokens": "state.json",
    },
    "engines/rollout/tickets.py:TicketSource": {
        "next": "tickets.json",
        "_start": "spec",
        "_domains": "spec",
        "_split": "spec",
        "_seed": "spec",
    },
    "engines/rollout/tickets.py:ChosenTickets": {
        "next": "tickets.json",
        "_picked": "tickets.json",
        "_in_order": "tickets.json",
        "_results": "handle",
        "_source": "spec",
        "_by_name": "spec",
        "_limit": "spec",
    },
    "engines/rollout/tickets.py:ToldResults": {
        "count": "tickets.json",
        "_unsaved": "notes",
        "_notes": "handle",
    },
    "engines/rollout/sources.py:Weighted": {
        "_names": "spec",
        "_weights": "spec",
        "_seed": "spec",
    },
    "engines/rollout/sources.py:ByDifficulty": {
        "_domains": "spec",
        "_seed": "spec",
        "_fresh": "spec",
        "_floor": "spec",
        "_half_life": "spec",
        "_places": "notes",
        "_known": "notes",
        "_told": "notes",
        "_weights": "notes",
    },
    "engines/rollout/sources.py:_Evidence": _all("right groups told", "notes"),
    "engines/rollout/filters.py:CanTeach": {"_needs_spread": "spec"},
    "engines/rollout/filters.py:OutcomeBetween": _all("_above _below _can_teach", "spec"),
    "engines/rollout/filters.py:ProcessFilter": {"process": "handle"},
    "engines/rollout/producer.py:Producer": {
        **_all("source _roller buffer _policy _journal _turns _filter", "handle"),
        **_all("admission group_size _within", "spec"),
        **_all("_known _taken _repeated _last_shared", "notes"),
        "recovered": "empty",
        "temperature": "temperature.json",
        "dropped_share": "tickets.json",
    },
    "engines/rollout/background_sampler.py:BackgroundSampler": {
        **_all("producer buffer policy", "handle"),
        **_all("steps on_stale", "spec"),
        "trained": "state.json",
        **_all("_open _rolling", "tickets.json"),
        "_sampled": "lost",
        **_all("_since _recovered _recovered_tokens", "empty"),
        **_all("_finished _error _is_closing _is_training", "empty"),
    },
    "engines/rollout/drivers/pace.py:Pace": {
        "round": "tickets.json",
        **_all("unfinished _open", "notes"),
        **_all("tokens on_round on_rest", "spec"),
        **_all("_began _rests", "empty"),
    },
    "engines/rollout/drivers/pace.py:RolloutPace": {
        **_all("_tokens _known _waits_for", "notes"),
        **_all("_group _writing", "empty"),
    },
    "engines/rollout/round_sampler.py:RoundSampler": {
        "_rolling": "tickets.json",
        **_all("producer buffer policy", "handle"),
        "tokens": "spec",
        "_restored": "empty",
    },
    "engines/rollout/records/journals.py:RolloutJournal": {
        "_notes": "notes",
        "_writer": "empty",
    },
    "engines/rollout/records/journals.py:NoteWriter": {
        "_notes": "notes",
        "_kind": "spec",
        "_encode": "spec",
        "_every_s": "spec",
        "_waiting": "empty",
        "_failure": "empty",
        "_writing": "empty",
        "_hurry": "empty",
        "_noted": "empty",
        "_num_kept": "empty",
        "_num_durable": "empty",
    },
    "engines/rollout/records/take_log.py:TrainedRollouts": {"_notes": "notes"},
    "engines/rollout/published_policy.py:UnpublishedPolicy": {"version": "state.json"},
    "engines/rollout/records/journals.py:TurnJournal": {
        "notes": "notes",
        "recovered_tokens": "empty",
        "_known": "notes",
        "_writer": "empty",
    },
    "engines/rollout/buffers.py:GroupBuffer": {
        "_waiting": "buffer.bin",
        "_policy": "handle",
        "groups_per_step": "spec",
        "max_staleness": "spec",
        "reused": "empty",
        "fault": "empty",
    },
    "engines/rollout/buffers.py:ChoosingBuffer": {
        "_rule": "spec",
        "_seed": "spec",
        "_times": "taken.json",
        "_waiting": "buffer.bin",
        "reused": "empty",
        "fault": "empty",
    },
    "engines/rollout/records/take_log.py:TakeLog": {
        "_takes": "notes",
        "_notes": "handle",
    },
    "engines/rollout/consumer.py:Consumer": {
        "_trainer": "handle",
        "_policy": "handle",
        "_wanted": "spec",
        "algorithm": "temperature.json",
        "_critic": "handle",
        "_critic_only_steps": "spec",
        "_before_publish": "handle",
        "ask_teachers": "handle",
    },
    "engines/rollout/published_policy.py:PublishedPolicy": {
        "_version": "state.json",
        "_trainer": "handle",
        "_servers": "handle",
        "_devices": "handle",
        "_weights": "empty",
        "_repairing": "empty",
    },
    "engines/devices/sharing.py:SharedDevices": {
        "_trained": "handle",
        "_servers": "handle",
        "_warn": "handle",
        "phase": "spec",
        "_changing": "empty",
        "_metrics": "empty",
        "_warned": "empty",
    },
    "engines/rollout/drivers/driver.py:Conversation": {
        "_environment": "handle",
        "_max_turns": "spec",
    },
    "engines/rollout/roller.py:Roller": {
        "_generate": "handle",
        "_chat": "handle",
        "_context_length": "spec",
        "_seed": "spec",
        "window": "handle",
    },
    "engines/rollout/roller.py:Window": {"_most": "spec", "_free": "empty", "_next": "empty"},
    "engines/rollout/workers/worker_pool.py:WorkerPool": {
        "window": "handle",
        "_start": "handle",
        "_places": "handle",
        "_servers": "handle",
        "_chat": "handle",
        "_numbers": "lost",
        "_waiting": "lost",
        "_assigned": "lost",
        "_fault": "lost",
        "_last_loss": "lost",
        "_tasks": "lost",
    },
}

WITHIN_A_STEP = (
    "engines/rollout/records/dataset.py:DatasetWriter",
    "engines/rollout/records/dataset.py:ParquetRows",
    "engines/rollout/consumer.py:StepResult",
    "engines/rollout/producer.py:Sampled",
    "engines/rollout/drivers/session.py:TokenSession",
    "engines/rollout/drivers/session_host.py:SessionHost",
    "engines/rollout/workers/assigned_group.py:AssignedGroup",
    "engines/rollout/workers/worker.py:RolloutWorker",
    "engines/rollout/workers/worker_pool.py:_Place",
)
"""objects that no step passes to the next, and those of processes whose end costs no work that was
told"""
