"""The stage `mine`: which problems it keeps of rollouts made by hand, and what `rl` does then."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from engines.rollout.records.dataset import AdmittedProblem, read_admitted, write_admitted
from engines.rollout.records.packing import pack_groups, save_groups
from engines.types import Group, Message, Problem, Status
from infra.errors import InputError
from tasks.admitted import only_admitted
from tasks.mine.body import run, transcript_of
from tasks.mine.spec import MINE_FILE, MINED, TRIGGERS_FILE, MineSpec
from tasks.rl.body import run as run_rl
from tasks.rl.spec import RlSpec
from tests.parts.rollout_parts import STOP, CharChat, domain, ids
from tests.parts.sample_parts import sample_of
from tests.parts.stage_parts import ListReporter, stage_context
from tests.unit.flows.checks.test_paths import RL, RL_OF_SAVED, SFT, plan, recipe

pytestmark = pytest.mark.unit

SOUND, LOOP, OPEN = "four", "again " * 60, "four <|tag|>"


def problem(name: str, question: str = "") -> Problem:
    return Problem(name, "d", (Message("user", question or f"how many {name}"),))


def group(of: Problem, answers: Sequence[str], status: Status = Status.COMPLETED) -> Group:
    made = [_sample(of, number, answer, status) for number, answer in enumerate(answers)]
    return Group(of, made, ticket=1)


def _sample(of: Problem, number: int, answer: str, status: Status) -> Any:
    prompt, said = ids("<q>"), [*ids(answer), STOP]
    mask = [0] * len(prompt) + [1] * len(said)
    zeros = [0.0] * len(mask)
    return sample_of(
        of.id, "d", of.id, f"{of.id}#{number}", number, prompt + said, mask, zeros, mask, status
    )


def kept_by_rl(folder: Path, groups: Sequence[Group]) -> Path:
    (folder / "trained").mkdir(parents=True)
    (folder / "trained" / f"{1:08d}.bin").write_bytes(pack_groups(groups))
    take = {"step": 1, "version": 0, "tickets": [each.ticket for each in groups]}
    (folder / "takes.jsonl").write_text(json.dumps(take))
    return folder


async def mined(root: Path, stages: Sequence[Path], **settings: Any) -> Any:
    inputs = {"model": root, **{f"rollouts_of_{n}": folder for n, folder in enumerate(stages)}}
    context = stage_context(root, "mine", inputs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tasks.mine.body.Chat.load", lambda folder: CharChat())
        summary = await run(MineSpec.model_validate({"settings": settings}), context)
    return context.out, summary


async def test_problems_are_kept_whose_rollouts_are_broken_the_worst_first(tmp_path: Path) -> None:
    sampled = tmp_path / "sampled"
    sampled.mkdir()
    groups = [group(problem("p1"), [LOOP, SOUND]), group(problem("p2"), [LOOP + OPEN, OPEN])]
    save_groups(sampled, [*groups, group(problem("p3"), [SOUND, SOUND])])
    again = group(problem("p1@2", "how many p1"), [SOUND, LOOP])
    failed = group(problem("p4"), [LOOP], Status.FAILED)
    trained = kept_by_rl(tmp_path / "trained", [again, failed])
    out, summary = await mined(tmp_path, [sampled, trained])
    assert [(row.domain, row.split, row.problem.id) for row in read_admitted(out)] == [
        ("d", "rl", "p2"),
        ("d", "rl", "p1"),
    ]
    lines = [json.loads(line) for line in (out / TRIGGERS_FILE).read_text().splitlines()]
    assert lines == [
        {"domain": "d", "problem_id": "p2", "rollouts": 2, "repetition": 1, "broken-format": 2},
        {"domain": "d", "problem_id": "p1", "rollouts": 4, "repetition": 2},
    ]
    counts = json.loads((out / MINE_FILE).read_text())["d"]
    assert (counts["rollouts"], counts["problems"], counts["kept"]) == (8, 3, 2)
    loops = counts["shown"]["repetition"]
    assert (loops["rollouts"], loops["problems"]) == (3, 2)
    # shares .5, .5 and 0: their error is 1/6, as of (1/3 x 2/3) / (1/6)^2 = 8 trials
    # middle (1/3 + 3.84146/16) / 1.480183, half 1.959964 / 1.480183 x sqrt(2/72 + 3.84146/256)
    assert loops["rate"] == pytest.approx(1 / 3)
    assert (loops["low"], loops["high"]) == pytest.approx((0.113514, 0.661288), abs=1e-5)
    assert summary["rate/repetition"] == pytest.approx(1 / 3)
    only, _ = await mined(tmp_path, [sampled], kinds=["repetition"], most=1)
    assert [row.problem.id for row in read_admitted(only)] == ["p1"], "the first of equals"


def test_a_rollout_is_read_back_with_what_a_tool_said() -> None:
    tokens = ids("<q>!look[found]four")
    mask = [0, 0, 0, *[1] * 5, *[0] * 7, *[1] * 4]
    zeros = [0.0] * len(mask)
    made = sample_of("p", "d", "g", "g#0", 0, tokens, mask, zeros, mask, Status.COMPLETED)
    read = transcript_of(CharChat(), problem("p"), made)
    assert [(m.role, m.content) for m in read.messages] == [
        ("assistant", "!look"), ("tool", "[found]"), ("assistant", "four"),
    ]  # fmt: skip
    assert read.answer == "four"
    nothing = sample_of("p", "d", "g", "g#0", 0, [1], [0], [0.0], [0], Status.TRUNCATED)
    assert transcript_of(CharChat(), problem("p"), nothing).messages == ()


async def test_rollouts_that_a_cached_stage_did_not_keep_are_named(tmp_path: Path) -> None:
    (tmp_path / "rl").mkdir()
    with pytest.raises(InputError, match="keep_rollouts: true"):
        await mined(tmp_path, [tmp_path / "rl"])


async def test_rl_draws_what_was_mined_of_the_domains_that_have_any(tmp_path: Path) -> None:
    write_admitted(tmp_path, [AdmittedProblem("a", "rl", problem("p1"))])
    context = stage_context(tmp_path, "rl", {MINED: tmp_path})
    (one,) = await only_admitted(context, [domain("a", lambda _: 1.0), domain("b", lambda _: 1.0)])
    assert one.name == "a"
    assert [p.id for p in one.curriculum.problems("rl", 2, 0)] == ["p1", "p1@2"]


async def test_where_nothing_was_mined_rl_passes_the_model_on_and_says_so(tmp_path: Path) -> None:
    sampled, model = tmp_path / "sampled", tmp_path / "model"
    sampled.mkdir()
    model.mkdir()
    save_groups(sampled, [group(problem("p1"), [SOUND, SOUND])])
    out, summary = await mined(tmp_path, [sampled])
    assert summary["kept"] == 0
    for name in ("config.json", "model.safetensors", "rollouts.parquet", "takes.jsonl"):
        (model / name).write_text(name)
    context = stage_context(tmp_path, "rl", {"model": model, MINED: out})
    assert isinstance(context.reporter, ListReporter)
    spec = plan(*PATH)["agent-rl-2"].spec
    assert isinstance(spec, RlSpec)
    assert await run_rl(spec, context) == {"steps": 0.0}
    assert sorted(file.name for file in context.out.iterdir()) == [
        "config.json",
        "model.safetensors",
    ]
    assert "trained nothing" in context.reporter.kept[0].what


KEEPING = {**RL, "keep_rollouts": True}
PATH = ({"sft": SFT}, {"rl": KEEPING}, "rollout", "mine", {"rl": RL}, "rl")


def test_only_the_rl_after_it_draws_the_mined_problems() -> None:
    stages = plan(*PATH)
    assert stages["agent-mine"].inputs == {
        "model": "agent-rl",
        "rollouts_of_agent-rl": "agent-rl",
        "rollouts_of_agent-rollout": "agent-rollout",
    }
    assert stages["agent-rl-2"].inputs == {"model": "agent-rl", MINED: "agent-mine"}
    assert stages["agent-rl-3"].inputs == {"model": "agent-rl-2"}


IN_PHASES = {**RL, "phases": [{"pools": ["hard"], "until_step": 1}, {"pools": ["moderate"]}]}


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ([{"rl": RL}, "mine", "rl"], "path.1.mine: no stage before it in its path keeps its roll"),
        ([{"mine": {"kinds": ["loops"]}}], "'language-mixing', 'repetition'"),
        ([{"mine": {"kinds": ["repetition"] * 2}}], "one twice; name each once"),
        (["rollout", "mine", {"sft": SFT}], "path.2.sft: only `rl` draws the problems that agent"),
        (["rollout", "mine", "distill"], "path.2.distill: only `rl` draws the problems that"),
        (["rollout", "mine", {"offline": RL_OF_SAVED}], "path.2.offline: only `rl` draws"),
        (["rollout", "mine", {"rl": IN_PHASES}], "phases: the problems of agent-mine are in no"),
    ],
)
def test_a_path_that_cannot_mine_is_refused_by_name(path: list[Any], said: str) -> None:
    with pytest.raises(InputError) as refused:
        plan(*path)
    assert said in str(refused.value)


def test_a_recipe_with_it_is_the_same_when_it_is_read_again() -> None:
    made = recipe(*PATH)
    assert recipe(*made.model_dump(mode="json")["experts"]["agent"]["path"]) == made
