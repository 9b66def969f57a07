"""What an evaluation samples, and how it is summed up."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest

from engines.rollout.records.gallery import Gallery, read_rollouts
from engines.rollout.records.journals import RolloutJournal
from engines.rollout.sample_only import KeptRollouts, sample_rollouts
from infra.code.identity import CodeIdentity
from infra.errors import EngineError, TrainingStopped
from infra.store.store import Store
from tasks.domain import Domain
from tasks.durable.stage_identity import StoredResults
from tasks.evaluate.body import run, twins_of
from tasks.evaluate.cells import (
    CellResult,
    cells_of,
    mirrored,
    pathology_rates,
    renamed,
    roll_cells,
    warnings_of,
)
from tasks.evaluate.score_tables import scores_of
from tasks.evaluate.spec import EvaluateSpec
from tasks.sampling import SamplingParts
from tests.parts.chat_parts import random_base
from tests.parts.rollout_parts import CharChat, Counting, Policy, domain, roller
from tests.parts.stage_parts import stage_context

pytestmark = pytest.mark.unit


class Thinking(Counting):
    def problems(self, split, count, seed, start=0):
        return [replace(p, thinking=True) for p in super().problems(split, count, seed, start)]


SPEC_DOMAIN = {
    "curriculum": {"name": "x"},
    "outcomes": [{"name": "y"}],
    "max_new_tokens": 48,
    "max_turns": 1,
    "timeout_s": 60.0,
}


def spec(**changes):
    raw = {
        "settings": {"problems": 4, "samples": 3, "samples_elsewhere": 2},
        "domains": [{**SPEC_DOMAIN, "name": name} for name in ("a", "b")],
        "home": {"m": ["a"]},
        **changes,
    }
    return EvaluateSpec.model_validate(raw)


async def kept(root, version=0):
    return await KeptRollouts.open(
        RolloutJournal(stage_context(root, "e", {}).checkpoints), version
    )


def live(name, score=lambda _: 1.0):
    return domain(name, score)


def test_a_model_is_sampled_in_full_and_greedily_at_home_only():
    cells = cells_of(spec(), "m", [live("a"), live("b")])
    assert [(c.domain.name, c.kind, c.samples) for c in cells] == [
        ("a", "score", 3),
        ("a", "greedy", 1),
        ("b", "score", 2),
    ]
    assert [c.temperature for c in cells] == [1.0, 0.0, 1.0]
    assert {p.id.split("/")[1] for c in cells for p in c.problems} == {"heldout"}


def test_without_thinking_only_thinking_domains_are_sampled_again():
    thinks = replace(live("a"), curriculum=Thinking("a"))
    cells = cells_of(spec(nothink=["m"]), "m", [thinks, live("b")])
    again = [c for c in cells if c.model == "m-nothink"]
    assert [(c.domain.name, c.kind) for c in again] == [("a", "score"), ("a", "greedy")]
    assert not any(p.thinking for c in again for p in c.problems)


def result(model, name, kind="score", score=0.5, outcomes=((0.0, 1.0), (0.5, 0.5))):
    return CellResult(model, name, kind, score, 0.1, 4, 9, 0.0, 0.0, 0.0, "", outcomes)


def test_domains_that_never_think_keep_their_score_without_thinking():
    results = mirrored(
        [result("m", "a"), result("m-nothink", "a", score=0.2), result("m", "b")], ["m"]
    )
    assert scores_of(results)["scores"] == {
        "m": {"a": 0.5, "b": 0.5},
        "m-nothink": {"a": 0.2, "b": 0.5},
    }
    assert sum(r.tokens for r in results) == 27
    alone = [result("m", "b")]
    assert mirrored(alone, ["m"]) == alone, "a model that thinks nowhere has one row"


def test_scores_and_greedy_are_separate_tables():
    tables = scores_of([result("m", "a"), result("m", "a", "greedy", 0.7)])
    assert tables["scores"] == {"m": {"a": 0.5}}
    assert tables["greedy"] == {"m": {"a": 0.7}}
    assert tables["stderr"] == {"m": {"a": 0.1}}
    assert len(tables["cells"]) == 2


def test_the_best_of_k_is_scored_where_there_are_k_samples():
    tables = scores_of([result("m", "a"), result("m", "b", outcomes=[[1.0], [0.0]])])
    assert tables["best_of"] == {"2": {"m": {"a": 0.75}}}  # (1 + .5) / 2
    assert set(tables["intervals"]) == {"scores", "greedy", "best_of_2"}
    low, high = tables["intervals"]["best_of_2"]["m"]["a"]
    assert 0 < low < 0.75 < high <= 1
    assert set(tables["intervals"]["scores"]["m"]) == {"a", "b"}


async def test_a_score_is_the_mean_outcome_of_the_rollouts_with_a_verdict(tmp_path):
    def score(answer):
        if answer == "3":
            raise ValueError("no verdict")
        return float(answer != "0")

    policy = Policy(lambda prompt, _: prompt[1:-1])
    gallery = Gallery(CharChat())
    cells = cells_of(spec(home={"m": []}), "m", [live("a", score)])
    (one,) = await roll_cells(roller(policy), cells, await kept(tmp_path), gallery)
    assert one.score == pytest.approx(2 / 3)  # 0 is wrong, 1 and 2 are right, 3 failed
    assert one.rollouts == 8
    assert one.failed_share == 0.25
    assert one.failure == "no verdict (2 of 2, the first on a/heldout/3)"
    assert one.tokens == 16
    assert one.stderr == pytest.approx((2 / 3 / 2 / 3) ** 0.5)
    assert one.outcomes == [[0.0, 0.0], [1.0, 1.0], [1.0, 1.0], [None, None]]
    assert scores_of([one])["scores"] == {"m": {"a": one.score}}
    (warning,) = warnings_of([one])
    assert (warning.figures, warning.cause) == ({"failed": 2, "asked": 8}, one.failure)
    gallery.write(tmp_path)
    rows = list(read_rollouts(tmp_path / "rollouts.parquet"))
    assert [r.response for r in rows] == ["0", "1", "2", "3"]
    assert [r.reason for r in rows] == ["", "", "", "no verdict"]
    assert rows[0].prompt == "<0>"


async def rolled_with(tmp_path, scores, say=lambda prompt, _: prompt[1:-1]):
    """One model on a domain for each way to score."""
    domains = [live(name, score) for name, score in scores.items()]
    described = spec(home={"m": []}, domains=[{**SPEC_DOMAIN, "name": name} for name in scores])
    cells = cells_of(described, "m", domains)
    return await roll_cells(roller(Policy(say)), cells, await kept(tmp_path), Gallery(CharChat()))


async def test_it_is_counted_which_answers_show_a_pathology(tmp_path):
    def say(prompt, _):
        return {"<1>": " "}.get(prompt, "four")

    results = await rolled_with(tmp_path, {"a": lambda _: 1.0}, say)
    assert results[0].pathologies == {"broken-format": [0.0, 1.0, 0.0, 0.0]}
    assert pathology_rates(results) == {"pathology/broken-format/m/a": 0.25}


def fails(answer):
    raise ValueError("'answer'")


async def test_a_reward_that_always_fails_gives_no_score_and_ends_the_evaluation(tmp_path):
    results = await rolled_with(tmp_path, {"a": fails, "b": lambda said: float(said > "1")})
    assert [r.score for r in results] == [None, 0.5]
    tables = scores_of(results)
    assert (tables["scores"], tables["no_verdict"]) == (
        {"m": {"b": 0.5}},
        {"m": {"a": "'answer' (8 of 8, the first on a/heldout/0)"}},
    )
    assert tables["intervals"]["scores"].keys() == {"m"}
    assert "a" not in tables["scaling"]["samples"]
    with pytest.raises(TrainingStopped, match=r"rewards of a failed on each of the 8 .*'answer'"):
        list(warnings_of(results))


async def test_a_model_without_a_verdict_beside_one_with_scores_is_named(tmp_path):
    (lost,) = await rolled_with(tmp_path / "1", {"a": fails})
    (found,) = await rolled_with(tmp_path / "2", {"a": lambda _: 1.0})
    other = replace(found, model="n")
    (warning,) = warnings_of([lost, other])
    alone = "in a (temperature 1) failed; no score has m (temperature 1)"
    assert warning.what == f"8 of 8 verdicts on m {alone}"
    three = [replace(lost, score=0.5, model=name) for name in "mno"]
    (warning,) = warnings_of([*three, replace(lost, kind="greedy"), found])
    assert warning.what == (
        "32 of 32 verdicts on all 3 models in a failed; no score has m (greedy)"
    )
    (warning,) = warnings_of([*three, found, replace(found, model="p")])
    assert warning.what == "24 of 24 verdicts on m, n, o in a failed; the scores are of the others"
    assert scores_of([lost, other])["scores"] == {"n": {"a": 1.0}}


async def test_a_domain_in_which_no_answer_is_whole_is_named(tmp_path):
    (cut,) = await rolled_with(tmp_path, {"a": lambda _: 0.0}, lambda prompt, _: "1" * 9)
    assert (cut.score, cut.truncated_share) == (0.0, 1.0)
    (warning,) = warnings_of([cut])
    assert warning.what == "every rollout of every model in a was cut off, so each scores 0"
    (broken,) = await rolled_with(tmp_path / "2", {"a": lambda _: 0.0}, lambda prompt, _: "?")
    (warning,) = warnings_of([broken])
    assert warning.what == "every rollout of every model in a broke the format, so each scores 0"
    (warning,) = warnings_of([broken, replace(cut, model="n")])
    assert str(warning).startswith(
        "every rollout of every model in a broke the format or was cut off, so each scores 0: 8 are"
        " malformed and 8 truncated"
    )
    assert list(warnings_of([broken, replace(cut, truncated_share=0.5)])) == []


async def test_broken_answers_are_zeros_and_what_fails_beside_them_is_said(tmp_path):
    (one,) = await rolled_with(tmp_path, {"a": fails}, lambda p, _: "?" if p != "<3>" else "3")
    assert (one.score, one.malformed_share, one.asked, one.failed) == (0.0, 0.75, 2, 2)
    (warning,) = warnings_of([one])
    assert warning.what.startswith("2 of 2 verdicts")


async def test_domains_of_one_curriculum_keep_their_own_rollouts_when_resumed(tmp_path):
    judges = {"a": lambda _: 1.0, "b": lambda answer: float(answer == "3")}
    domains = [replace(live(n, s), curriculum=Counting("a")) for n, s in judges.items()]
    cells = cells_of(spec(), "m", domains)

    async def rolled(policy):
        return await roll_cells(roller(policy), cells, await kept(tmp_path), Gallery(CharChat()))

    whole = await rolled(Policy(lambda prompt, _: prompt[1:-1]))
    assert [(r.domain, r.kind, r.score) for r in whole] == [
        ("a", "score", 1.0),
        ("a", "greedy", 1.0),
        ("b", "score", 0.25),
    ]
    nothing_new = Policy(lambda *_: "x")
    assert await rolled(nothing_new) == whole
    assert nothing_new.calls == []


async def test_the_seeds_of_a_problem_are_the_same_in_every_domain(tmp_path):
    policy = Policy(lambda prompt, _: prompt[1:-1])
    domains = [replace(live(n), curriculum=Counting("a")) for n in ("a", "b")]
    cells = cells_of(spec(home={}), "m", domains)
    await roll_cells(roller(policy), cells, await kept(tmp_path), Gallery(CharChat()))
    seeds = sorted(sampling.seed for _, sampling in policy.calls)
    assert seeds[::2] == seeds[1::2]
    assert len(set(seeds)) == 8


async def test_tokens_of_other_weights_are_refused(tmp_path):
    with pytest.raises(EngineError, match=r"from weights \[0\] while 2 were loaded"):
        await sample_rollouts(
            roller(Policy(lambda *_: "7")),
            live("a"),
            live("a").curriculum.problems("heldout", 1, 0),
            samples=1,
            temperature=1.0,
            kept=await kept(tmp_path, version=2),
        )


def test_a_domain_needs_exactly_one_outcome():
    raw = {"name": "a", "curriculum": {"name": "x"}, "rewards": [{"name": "y"}]}
    with pytest.raises(ValueError, match="0 rewards say `outcome: true`; exactly one must"):
        Domain.model_validate(raw)


def test_weights_of_two_names_are_sampled_once():
    """Twins share an artifact and are to be sampled alike; another home is another sampling."""
    planned = spec(home={"grpo-sft": ["a"], "dapo-sft": ["a"], "elsewhere": []})
    digests = {"base": "b", "grpo-sft": "s", "dapo-sft": "s", "elsewhere": "s"}
    records = {name: {"digest": digest} for name, digest in digests.items()}
    assert twins_of(planned, records) == {"dapo-sft": "grpo-sft"}


def test_a_twins_results_are_the_originals_under_its_name():
    results = [result("grpo-sft", "a"), result("base", "a", score=0.1)]
    (copy,) = renamed(results, "grpo-sft", "dapo-sft")
    assert (copy.model, copy.score) == ("dapo-sft", 0.5)


def results_in(root):
    code = CodeIdentity(hash="c", files={}, hooks={}, version="", commit="", dirty=False)
    return StoredResults(Store(str(root / "store")), code)


async def evaluated(tmp_path, described, models, score=lambda _: 0.5, positions=None):
    """An evaluation of models, each a digest by its name: those that had to be sampled, and the
    content of its `scores.json` and the labels of its rows. Policies stand in for servers."""
    model = random_base(tmp_path / "model")
    records = {name: {"digest": digest} for name, digest in models.items()}
    folders = {name: with_positions(model, (positions or {}).get(name, 2048)) for name in models}
    context = stage_context(tmp_path, "e", folders, records=records)
    context.results = results_in(tmp_path)
    policy = Policy(lambda prompt, _: prompt[1:-1])
    loaded = []

    class OneServer:
        """The first model's as version 0; others are loaded into it."""

        async def load(self, folder, version):
            policy.version = version

        async def of(self, folder, chat):
            loaded.append(list(models)[policy.version])
            return roller(policy)

    async def open_here(stack, context, fleet, domains, model, seed, fit):
        journal, server = RolloutJournal(context.checkpoints), OneServer()
        return SamplingParts(server, CharChat(), [live("a", score)], server, journal)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tasks.evaluate.body.open_sampling", open_here)
        await run(described, context)
    labels = [row.label for row in read_rollouts(context.out / "rollouts.parquet")]
    return loaded, json.loads((context.out / "scores.json").read_text()), labels


def with_positions(model, positions):
    """A copy of the model's folder, as a model with another context."""
    copy = model.parent / f"model-{positions}"
    shutil.copytree(model, copy, dirs_exist_ok=True)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"max_position_embeddings": positions}))
    return copy


def of_domain_a(home, **changes):
    return spec(home=home, domains=[{**SPEC_DOMAIN, "name": "a"}], **changes)


async def test_each_round_s_evaluation_samples_the_new_round_s_model_alone(tmp_path):
    """Whatever the earlier ones are called now: the newest of each run has the expert's name."""
    sampled = []
    for rounds in (1, 4, 8):
        models = {f"m-{number}": str(number) * 64 for number in range(rounds)}
        newest = {"m": f"{rounds - 1}" * 64}
        planned = {**dict(list(models.items())[:-1]), **newest}
        home = {name: ["a"] for name in planned}
        new, tables, labels = await evaluated(tmp_path, of_domain_a(home), planned)
        sampled.append(len(new))
        assert set(tables["scores"]) == set(planned)
        assert {label.rpartition(" ")[0] for label in labels} == set(planned)
    assert sampled == [1, 3, 4]
    again, same, _ = await evaluated(tmp_path, of_domain_a(home), planned)
    assert (again, same) == ([], tables), "the artifact does not tell who sampled"


@pytest.mark.parametrize(
    ("home", "changes"),
    [({"m": []}, {}), ({"m": ["a"]}, {"seed": 1}), ({"m": ["a"]}, {"nothink": ["m"]})],
)
async def test_a_model_that_is_to_be_sampled_in_another_way_is_sampled(tmp_path, home, changes):
    models = {"m": "d" * 64}
    assert (await evaluated(tmp_path, of_domain_a({"m": ["a"]}), models))[0] == ["m"]
    assert (await evaluated(tmp_path, of_domain_a(home, **changes), models))[0] == ["m"]
    assert (await evaluated(tmp_path, of_domain_a({"m": ["a"]}), {"m": "e" * 64}))[0] == ["m"]
    assert (await evaluated(tmp_path, of_domain_a({"m": ["a"]}), models))[0] == []


async def test_results_with_failed_verdicts_or_damage_are_made_anew(tmp_path):
    def fails(answer):
        if answer == "3":
            raise ValueError("no verdict")
        return 0.5

    models, described = {"m": "d" * 64}, of_domain_a({"m": ["a"]})
    assert (await evaluated(tmp_path, described, models, fails))[0] == ["m"]
    assert (await evaluated(tmp_path, described, models))[0] == ["m"], "its verdicts had failed"
    (file,) = (tmp_path / "store" / "results").rglob("*.json")
    file.write_bytes(file.read_bytes()[:-20])
    assert (await evaluated(tmp_path, described, models))[0] == ["m"]
