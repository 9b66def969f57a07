"""What cannot fit the devices is refused, with the smallest change that does."""

from __future__ import annotations

import os
from dataclasses import replace
from io import StringIO
from typing import cast

import pytest
from rich.console import Console

from engines.megatron.spec import Parallel
from engines.memory.activations import Recompute
from engines.memory.server_memory import ServerMemory, ServerNeeds, server_memory
from engines.memory.trainer_memory import (
    TrainerMemory,
    TrainerNeeds,
    optimizer_state,
    trainer_memory,
)
from flows.checks.memory import fit
from flows.checks.memory.fit import (
    Room,
    memory_cautions,
    memory_problems,
    planned_memory,
    server_change,
    trainer_change,
)
from flows.checks.memory.machine import (
    core_cautions,
    host_cautions,
    machine_cautions,
    side_by_side,
)
from flows.checks.memory.roles import (
    ASLEEP_BYTES,
    RoleMemory,
    beside_trainer,
    longest_sequence,
    parts_of,
)
from flows.checks.store_checks import KeptBytes, kept_bytes
from flows.command.show import memory_json, memory_table
from flows.load import load_recipe
from flows.post_train import plan_post_train
from tasks.durable.stage_identity import stage_identity
from tests.parts.memory_table import known_sizes

pytestmark = pytest.mark.unit

GB = 10**9
QWEN3_4B = known_sizes()["Qwen3-4B"]
NEEDS = TrainerNeeds(Parallel(tp=4), "bf16", 16384)
FOUR_ON_80 = Room(80 * GB, per_host=8, devices=4)


def problems(*changes: str, name: str = "cluster") -> list[str]:
    recipe = load_recipe(name, ["base.folder=memory://nowhere/Qwen3-4B", *changes])
    return list(memory_problems(recipe, plan_post_train(recipe)))


def test_the_recipe_for_a_cluster_fits_two_hosts_of_eight() -> None:
    assert problems() == []


def test_its_memory_is_known_by_the_models_name_where_the_folder_is_out_of_reach() -> None:
    recipe = load_recipe("cluster", ["base.folder=memory://nowhere/Qwen3-4B"])
    roles = planned_memory(recipe, plan_post_train(recipe))
    assert {(r.stage, r.role, r.num_devices) for r in roles} >= {
        ("reasoning-sft", "trainer", 4), ("reasoning-rl", "trainer", 4),
        ("reasoning-rl", "server", 4), ("unified-rl", "trainer", 8), ("unified-rl", "server", 8),
    }  # fmt: skip
    assert all(role.size == QWEN3_4B for role in roles)
    (said,) = memory_cautions(recipe, plan_post_train(recipe))
    assert "computed for Qwen3-4B, as its folder is called" in said
    unknown = load_recipe("cluster", ["base.folder=memory://nowhere/model"])
    assert not planned_memory(unknown, plan_post_train(unknown))
    assert "no memory was computed" in next(memory_cautions(unknown, plan_post_train(unknown)))


def kept(stage: str, *changes: str) -> KeptBytes:
    recipe = load_recipe("cluster", ["base.folder=memory://nowhere/Qwen3-4B", *changes])
    found = kept_bytes(recipe, plan_post_train(recipe))
    return next(each for each in found if each.stage == stage)


def test_the_room_that_a_stage_will_need_is_said_in_bytes() -> None:
    weights, path = QWEN3_4B.num_weights, "experts.reasoning.path"
    steps = [
        "experts.reasoning.path.1.rl.steps=1000",
        "experts.reasoning.path.1.rl.checkpoint_every=10",
    ]
    usual = kept("reasoning-rl", *steps)
    assert usual.model == 2 * weights, "bf16"
    assert usual.checkpoints == 3 * 14 * weights, "two kept and one that is written"
    assert usual.mlflow == 1000 * 85 * 250
    more = "resources.stages.reasoning-rl.checkpoints={last: 2, every: 100, best: true}"
    assert kept("reasoning-rl", *steps, more).checkpoints == 14 * 14 * weights
    few = kept("reasoning-rl", f"{path}.1.rl.steps=1")
    assert few.checkpoints == 2 * 14 * weights
    rollouts = ["problems_per_step=4", "group_size=8", "fleet.context_length=1000"]
    sampled = [*steps, *(f"{path}.1.rl.{change}" for change in rollouts)]
    least = kept("reasoning-rl", *sampled, f"{path}.1.rl.keep_rollouts=false").rollouts
    most = kept("reasoning-rl", *sampled, f"{path}.1.rl.keep_rollouts=true").rollouts
    assert most - least == 1000 * 4 * 8 * 1000 * 11
    assert least in (18 * 6_000_000, 18 * 10_000_000), "bounded, with or without evaluations"
    assert kept("reasoning-sft").rollouts == 0
    phases = "[{pools: [moderate], until_step: 2}, {pools: [hard], group_size: 32}]"
    rl = "steps: 1000, optimizer: {lr: 1e-5}, problems_per_step: 4, keep_rollouts: true"
    rl += ", fleet: {context_length: 1000}, phases: " + phases
    several = f"{path}=[{{screen: {{keep: [moderate, hard]}}}}, {{rl: {{{rl}}}}}]"
    bounded = 18 * 6_000_000
    room = kept("reasoning-rl", several, "resources.stages={}").rollouts
    assert room == bounded + 1000 * 4 * 32 * 1000 * 11, "of the phase with the largest groups"


def test_a_trainer_that_does_not_fit_is_refused_with_a_change_that_does() -> None:
    found = problems("resources.stages.unified-rl.trainer={tp: 1, dp: 8}")
    (said,) = [line for line in found if "trainer" in line]
    assert said.startswith("stage unified-rl: its trainer needs ")
    assert "a device holds 80.0: " in said
    assert " fits (" in said


def test_both_rollouts_of_a_pair_are_in_one_micro_batch() -> None:
    context = "experts.reasoning.path.1.rl.fleet.context_length=1000"
    pairs = "experts.reasoning.path.1.rl.algorithm={preset: online-dpo}"
    for changes, longest in (([], 1000), ([pairs], 2000)):
        recipe = load_recipe("cluster", ["base.folder=memory://nowhere/m", context, *changes])
        stages = {stage.name: stage for stage in plan_post_train(recipe)}
        assert longest_sequence(stages["reasoning-rl"]) == longest


def test_a_server_that_does_not_fit_gets_a_smaller_cache() -> None:
    (said,) = problems("unified.path.rl.fleet.max_total_tokens=4000000")
    assert "stage unified-rl: its server needs" in said
    assert "fleet.max_total_tokens: 4000000 -> " in said


def test_a_cache_without_a_size_takes_what_is_free_of_a_gpu() -> None:
    """As SGLang does: the table says so, and that 16,384 tokens fit is enough."""
    longest = "unified.path.rl.fleet={context_length: 16384}"

    def server(*changes: str) -> RoleMemory:
        recipe = load_recipe("cluster", ["base.folder=memory://nowhere/Qwen3-4B", *changes])
        roles = {(r.stage, r.role): r for r in planned_memory(recipe, plan_post_train(recipe))}
        return roles["unified-rl", "server"]

    free, stated = server(longest), server()
    assert sum(parts_of(free).values()) == 80 * GB
    # 36 layers, 8 heads of 128 values in bf16 on two devices: 73,728 bytes a token and device
    rest = 80 * GB - free.total
    assert free.cached_tokens == 16384 + rest // 73_728
    assert 600_000 < free.cached_tokens < 1_000_000
    (row,) = memory_json([free])
    assert (row["total"], row["cached_tokens"]) == (80 * GB, free.cached_tokens)
    shown = Console(width=250, file=StringIO())
    shown.print(memory_table([free]))
    assert f"{free.cached_tokens:,} tokens" in cast("StringIO", shown.file).getvalue()
    assert (stated.filled, stated.cached_tokens) == (0, 400_000)
    on_cpu = server("resources.devices=null", longest)
    assert (on_cpu.filled, on_cpu.cached_tokens) == (0, 16_384)
    assert problems(longest) == []
    found = problems(longest, "resources.devices.memory_gb=10")
    assert any(line.startswith("stage unified-rl: its server needs") for line in found)


def test_nothing_is_refused_on_a_host_without_gpus_unless_devices_are_stated() -> None:
    huge = "resources.stages.unified-rl.trainer={tp: 1}"
    assert problems("resources.devices=null", huge) == []
    assert problems(huge)


def test_a_critic_has_a_trainer_and_devices_of_its_own() -> None:
    critic = [
        "unified.path.rl.algorithm={preset: ppo}",
        "unified.path.rl.critic={trainer: {precision: fp32}}",
        "resources.trainer_ranks=16",
        "resources.devices.hosts=3",
        "resources.stages.unified-rl.critic={tp: 8}",
    ]
    assert problems(*critic) == []
    recipe = load_recipe("cluster", ["base.folder=memory://nowhere/Qwen3-4B", *critic])
    roles = {(r.stage, r.role): r for r in planned_memory(recipe, plan_post_train(recipe))}
    found = roles["unified-rl", "critic"]
    assert found.num_devices == 8
    assert found.size.has_value_head
    assert isinstance(found.needs, TrainerNeeds)
    assert found.needs.precision == "fp32"


def test_devices_that_are_too_few_are_named() -> None:
    pool, *stages = problems("resources.devices.hosts=1")
    assert "8 trainer_ranks and 4 servers of 2 devices need 16 devices" in pool
    assert "stage unified-rl: its ranks and servers need 16 devices together" in stages[0]


def test_a_tensor_parallel_group_lies_on_one_host() -> None:
    found = problems("resources.devices={memory_gb: 80, per_host: 6, hosts: 3}")
    assert any(
        "resources trainer.tp is 4, but a group of 4 devices lies on one" in x for x in found
    )
    assert problems("resources.devices={memory_gb: 80, per_host: 4, hosts: 4}") == []


def test_the_smallest_change_is_of_one_setting_and_needs_no_more_devices() -> None:
    one_gpu = replace(NEEDS, layout=Parallel(tp=2))
    change = trainer_change(QWEN3_4B, one_gpu, replace(FOUR_ON_80, devices=2, device_bytes=70 * GB))
    assert change is not None
    assert "recompute_granularity: full" in change.text
    assert change.num_devices == 2
    fits = replace(one_gpu, recompute=Recompute(method="uniform", num_layers=1))
    assert change.num_bytes == trainer_memory(QWEN3_4B, fits).total


def test_with_everything_computed_again_the_layout_changes() -> None:
    again = Recompute(method="uniform", num_layers=1)
    tight = replace(NEEDS, layout=Parallel(), tokens=1024, recompute=again)
    change = trainer_change(QWEN3_4B, tight, FOUR_ON_80)
    assert change is not None
    assert change.text == "resources: trainer.tp: 1 -> 2"


def test_micro_batches_stay_as_long_as_the_longest_sequence() -> None:
    needs = replace(NEEDS, recompute=Recompute(method="uniform", num_layers=1))
    room = Room(trainer_memory(QWEN3_4B, needs).total - GB // 2, 8, 4, longest=16384)
    assert trainer_change(QWEN3_4B, needs, room) is None
    freed = trainer_change(QWEN3_4B, needs, replace(room, longest=8192))
    assert freed is not None
    assert freed.text == "trainer.micro_batch_tokens: 16384 -> 8192"


def test_changes_of_several_settings_are_found_where_one_is_not_enough() -> None:
    change = trainer_change(known_sizes()["Qwen3-32B"], NEEDS, replace(FOUR_ON_80, devices=16))
    assert change is not None
    assert change.num_bytes <= 80 * GB
    assert change.text.count("->") + change.text.count("recompute_granularity") >= 2


def test_what_fits_nowhere_has_no_change() -> None:
    assert trainer_change(known_sizes()["Llama-3-70B"], NEEDS, FOUR_ON_80) is None


def test_a_servers_cache_must_hold_the_longest_sequence() -> None:
    size = known_sizes()["Qwen3-32B"]
    needs = ServerNeeds(1, 16384, 400_000, {}, 80 * GB)
    wider = server_change(size, needs, Room(80 * GB, 8, 8), servers=1)
    assert wider is not None
    assert wider.text == "resources: tp_per_server: 1 -> 4"
    assert wider.num_bytes == server_memory(size, replace(needs, tp=4)).total
    smaller = server_change(size, replace(needs, tp=2), Room(80 * GB, 8, 8), servers=1)
    assert smaller is not None
    assert smaller.text.startswith("fleet.max_total_tokens: 400000 -> ")
    tokens = int(smaller.text.rpartition(" ")[2])
    assert 16384 < tokens < 400_000
    assert smaller.num_bytes <= 80 * GB


def test_both_sides_of_a_stage_take_turns_on_sixteen_devices() -> None:
    """Beside a trainer a sleeping server's context; beside a server the trainer's weights, two
    buckets, each as large as the embedding, and the sleeping trainer's context."""
    assert problems(name="cluster-shared") == []
    recipe = load_recipe("cluster-shared", ["base.folder=memory://nowhere/Qwen3-4B"])
    roles = {(r.stage, r.role): r for r in planned_memory(recipe, plan_post_train(recipe))}
    trainer, server = roles["unified-rl", "trainer"], roles["unified-rl", "server"]
    assert (trainer.num_devices, server.num_devices) == (16, 16)
    assert trainer.beside == GB
    assert server.beside == GB + trainer.memory.weights + 2 * (151_936 * 2_560 * 2)
    assert roles["unified-sft", "trainer"].beside == 0


def test_a_larger_side_leaves_less_to_the_other() -> None:
    large = "unified.path.rl.fleet={max_total_tokens: 800000, context_length: 16384}"
    assert problems(large) == []
    (said,) = problems(large, name="cluster-shared")
    assert "of its other side), and a device holds 80.0: fleet.max_total_tokens: 800000 -> " in said


def test_servers_weights_beside_a_checkpoint_count_as_far_as_they_pass_the_free_room() -> None:
    trainer = TrainerMemory(2, 4, 12, 0, 3, 0)
    assert beside_trainer(trainer, ServerMemory(7, 50, 1, 9)) == ASLEEP_BYTES
    assert beside_trainer(trainer, ServerMemory(10, 50, 1, 9)) == ASLEEP_BYTES + 3


def test_the_hosts_memory_that_ranks_take_is_said_and_a_host_that_has_too_little_is_a_caution():
    """bf16: what sleeps has 2 + 12 bytes a weight and the reference 2, a checkpoint's copy 14."""
    devices = "resources.devices={memory_gb: 80, per_host: 1}"
    recipe = load_recipe("one-gpu", ["base.folder=memory://nowhere/Qwen3-0.6B", devices])
    roles = planned_memory(recipe, plan_post_train(recipe))
    (rl,) = [r for r in roles if (r.stage, r.role) == ("reasoning-rl", "trainer")]
    sft = replace(rl, sleeps=False, needs=replace(rl.needs, copies=0))
    weights = rl.size.num_weights
    frozen = rl.needs.copies if isinstance(rl.needs, TrainerNeeds) else 0
    assert (sft.host_bytes, rl.host_bytes) == (14 * weights, (28 + 2 * frozen) * weights)
    assert [row["host"] for row in memory_json([sft])] == [14 * weights]
    assert not list(host_cautions(roles, 100 * GB, 1))
    (said,) = [line for line in host_cautions(roles, 20 * GB, 1) if "reasoning-rl" in line]
    assert f"take up to {rl.host_bytes / GB:.1f} GB of this host's memory, which is 20.0" in said
    assert "while they sleep" in said
    assert "`share: false`" in said
    assert not list(host_cautions([sft], 20 * GB, 1))


def test_what_is_offloaded_counts_to_the_host_and_is_copied_for_a_checkpoint() -> None:
    half = optimizer_state(
        "bf16", {"optimizer_cpu_offload": True, "optimizer_offload_fraction": 0.5}
    )
    whole = trainer_memory(QWEN3_4B, NEEDS)
    split = trainer_memory(QWEN3_4B, replace(NEEDS, state=half))
    assert split.offloaded == pytest.approx(whole.optimizer / 2, abs=2)
    saved = whole.weights + whole.optimizer
    # Moments and weights of 12 bytes are in the host's memory, and gradients of 4.
    kept = split.offloaded + split.offloaded / 3
    assert split.host_bytes(sleeps=False) == pytest.approx(saved + kept, abs=4)
    assert whole.host_bytes(sleeps=True) == 2 * saved


def test_on_cpus_a_stage_that_takes_most_of_the_machine_is_a_caution_with_what_to_set() -> None:
    recipe = load_recipe(
        "cluster", ["base.folder=memory://nowhere/Qwen3-0.6B", "resources.devices=null"]
    )
    roles = planned_memory(recipe, plan_post_train(recipe))
    assert not list(machine_cautions(roles, 4000 * GB))
    found = list(machine_cautions(roles, 40 * GB))
    (said,) = [line for line in found if line.startswith("stage reasoning-sft needs")]
    assert "and the stack 3.0 GB), and this machine has 40.0 GB" in said
    tokens = int(said.partition("trainer.micro_batch_tokens: ")[2].split()[0])
    fewer = [
        replace(role, needs=replace(role.needs, tokens=tokens))
        for role in roles
        if role.stage == "reasoning-sft" and isinstance(role.needs, TrainerNeeds)
    ]
    assert not list(machine_cautions(fewer, 40 * GB)), "what it says fits"
    hopeless = list(machine_cautions(roles, 1 * GB))
    assert all("a smaller model" in line for line in hopeless)


def test_a_plan_with_many_more_servers_than_cores_is_said_to_be_no_faster() -> None:
    cores = len(os.sched_getaffinity(0))
    many = [f"resources.{field}={4 * cores + 1}" for field in ("servers", "default.servers")]
    few, crowded = (plan_post_train(load_recipe("cpu-smoke", each)) for each in ([], many))
    (said,) = [*core_cautions(few), *core_cautions(crowded)]
    assert f"-rl: ranks: 1, servers: {4 * cores + 1}, and this machine has {cores} cores" in said


def test_a_micro_batch_that_the_recipe_leaves_open_is_as_large_as_the_machine_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sft = "experts.reasoning.path.0.sft.trainer.micro_batch_tokens"
    base = "base={folder: 'memory://nowhere/Qwen3-0.6B'}"

    def taken(tokens: int | None) -> tuple[float, int]:
        """By the SFT stage, with the stack; and the size of its micro-batches."""
        recipe = load_recipe("cpu-smoke", [base, f"{sft}={tokens or 'null'}"])
        (stage,) = [s for s in plan_post_train(recipe) if s.name == "reasoning-sft"]
        (role,) = planned_memory(recipe, [stage])
        now = fit.sized(recipe, stage)
        assert now.spec.trainer is not None
        assert stage_identity(now.spec, {}).digest == stage_identity(stage.spec, {}).digest
        chosen.append(" ".join(fit.size_notes(recipe, [stage])))
        return role.total / GB + 3, now.spec.trainer.most_tokens

    chosen: list[str] = []
    sizes = {tokens: taken(tokens)[0] for tokens in (8192, 1024, 512)}
    assert set(chosen) == {""}, "what the recipe says is used"
    for tokens, needed in sizes.items():
        for there, expected in ((needed + 0.1, tokens), (needed - 0.1, max(tokens // 2, 512))):
            monkeypatch.setattr(fit, "machine_bytes", lambda n=there: int(n * GB / 0.5))
            assert taken(None)[1] == expected
            told = f"trainer.micro_batch_tokens: {expected} for reasoning-sft: chosen, as this"
            assert (told in chosen[-1]) == (expected < 8192)


def test_stages_that_run_at_once_are_counted_together() -> None:
    changes = ["base.folder=memory://nowhere/Qwen3-0.6B", "resources.devices=null"]
    recipe = load_recipe("cluster", changes)
    plan = [stage for stage in plan_post_train(recipe) if stage.expert]
    roles = planned_memory(recipe, plan)

    def chosen(**limits: int) -> list[str]:
        return side_by_side(plan, recipe.resources.model_copy(update=limits), roles)

    def total(*stages: str) -> int:
        return sum(role.total * role.num_devices for role in roles if role.stage in stages)

    wide = {"trainer_ranks": 64, "servers": 64}
    pair = chosen(concurrent_stages=2, **wide)
    experts = {stage.expert for stage in plan if stage.name in pair}
    assert len(pair) == len(experts) == 2, "one of each of two experts"
    (alone,) = chosen(concurrent_stages=1, **wide)
    assert total(alone) == max(total(stage.name) for stage in plan)
    assert len(chosen(concurrent_stages=2, trainer_ranks=1, servers=1)) == 1
    there = int((total(alone) + 4 * GB) / 0.75)  # enough for each of them
    assert total(*pair) > total(alone) + GB
    assert not list(machine_cautions(roles, there))
    (said,) = machine_cautions(roles, there, {}, pair)
    assert said.startswith(f"stages {pair[0]} and {pair[1]} may run side by side and need up to")
    assert said.endswith("; or set resources.concurrent_stages: 1")
