"""More ways to sample an evaluation: each has scores of its own, and changes no other's."""

from __future__ import annotations

import pytest

from engines.rollout.records.gallery import Gallery
from tasks.evaluate.cells import cells_of, roll_cells, that_think
from tasks.evaluate.score_tables import scaling_metrics, scores_of
from tests.parts.rollout_parts import CharChat, Policy, roller
from tests.unit.tasks.test_evaluate_cells import evaluated, kept, live, of_domain_a, spec

pytestmark = pytest.mark.unit

WARM = {"temperature": 0.6, "top_p": 0.95, "samples": 4}


def with_sampling(*ways):
    settings = {"problems": 4, "samples": 3, "samples_elsewhere": 2}
    return {"settings": settings | ({"sampling": list(ways)} if ways else {})}


async def test_a_setting_is_scored_on_its_own_and_moves_no_other_sample(tmp_path):
    async def sampled(place, *ways):
        policy = Policy(lambda _, sampling: str((sampling.seed or 0) % 2))
        results = await roll_cells(
            roller(policy),
            cells_of(spec(**with_sampling(*ways)), "m", [live("a", float), live("b", float)]),
            await kept(tmp_path / place),
            Gallery(CharChat()),
        )
        by_way = {}
        for _, s in policy.calls:
            by_way.setdefault((s.temperature, s.top_p), set()).add(s.seed)
        return by_way, scores_of(results), scaling_metrics(results)

    plain, alone, curves = await sampled("plain")
    one, beside, more = await sampled("one", WARM)
    two, both, _ = await sampled("two", {"temperature": 0.3}, WARM)
    assert set(plain) == {(1.0, 1.0), (0.0, 1.0)}
    assert set(two) - set(one) == {(0.3, 1.0)}
    assert plain.items() <= one.items() <= two.items(), "each setting has seeds of its own"
    assert len(one[0.6, 0.95]) == 4 * 4, "four problems at home"
    assert not one[0.6, 0.95] & (one[1.0, 1.0] | two[0.3, 1.0])

    assert "sampled" not in alone
    mine, cells = beside.pop("sampled"), beside.pop("cells")
    assert alone.pop("cells") == [c for c in cells if c["kind"] != "t0.6-p0.95"]
    assert alone == beside
    assert mine["t0.6-p0.95"] == both["sampled"]["t0.6-p0.95"]
    (cell,) = [c for c in cells if c["kind"] == "t0.6-p0.95"]
    right = [sum(of) for of in cell["outcomes"]]
    assert mine["t0.6-p0.95"]["scores"] == {"m": {"a": sum(right) / 16}}
    assert mine["t0.6-p0.95"]["best_of"]["4"] == {"m": {"a": sum(c > 0 for c in right) / 4}}
    assert set(mine["t0.6-p0.95"]["intervals"]) == {"scores", "best_of_2", "best_of_4"}
    own = {name: v for name, v in more[4].items() if name.startswith("t0.6-p0.95/")}
    assert own["t0.6-p0.95/scaling/samples/m/a"] == sum(c > 0 for c in right) / 4
    assert {k: more[2][k] for k in curves[2]} == curves[2]


def test_settings_that_say_nothing_new_are_refused_by_name():
    for ways, why in (
        ([{"samples": 9}], "temperature 1 without `top_p`"),
        ([WARM, {**WARM, "samples": 8}], r"t0\.6-p0\.95: a way to sample is named twice"),
        ([{"temperature": 0}], "greater than 0"),
        ([{"top_p": 1.1}], "less than or equal to 1"),
        ([{"top_k": 20}], r"sampling\.0\.top_k\s+Extra inputs"),
        ([{"min_p": 0.1}], r"sampling\.0\.min_p\s+Extra inputs"),
    ):
        with pytest.raises(ValueError, match=why):
            spec(**with_sampling(*ways))


def test_without_settings_the_spec_is_what_it_was():
    assert "sampling" not in spec().model_dump(mode="json")["settings"]
    assert spec(**with_sampling(WARM)).model_dump()["settings"]["sampling"] == [WARM]


async def test_a_model_s_results_are_found_again_under_the_same_settings_alone(tmp_path):
    models = {"m": "d" * 64}
    warm = of_domain_a({"m": ["a"]}, **with_sampling(WARM))
    new, tables, labels = await evaluated(tmp_path, warm, models)
    assert (new, tables["sampled"]["t0.6-p0.95"]["scores"]) == (["m"], {"m": {"a": 0.5}})
    assert set(labels) == {"m score", "m greedy", "m t0.6-p0.95"}
    renamed_home = of_domain_a({"x": ["a"]}, **with_sampling(WARM))
    new, tables, labels = await evaluated(tmp_path, renamed_home, {"x": "d" * 64})
    assert (new, set(labels)) == ([], {"x score", "x greedy", "x t0.6-p0.95"})
    assert tables["sampled"]["t0.6-p0.95"]["scores"] == {"x": {"a": 0.5}}
    other = of_domain_a({"m": ["a"]}, **with_sampling({**WARM, "top_p": 0.9}))
    assert (await evaluated(tmp_path, other, models))[0] == ["m"]


BRIEF = {"temperature": 0.6, "samples": 2, "thought_tokens": 3, "thought_waits": 1}


class Thinks(CharChat):
    template_file = "chat_template.jinja"

    def may_think(self, problem):
        return problem.domain == "a"


async def test_a_budget_for_thoughts_is_a_way_of_its_own_where_there_are_thoughts(tmp_path):
    asked = spec(**with_sampling(WARM, BRIEF), home={"m": ["a", "b"]}, nothink=["m"])
    domains = [live("a", float), live("b", float)]
    name = "t0.6-think3-wait1"
    cells, left_out = that_think(cells_of(asked, "m", domains), Thinks())
    assert left_out == [f"m in b is not scored as {name}: it has no thoughts there"]
    assert [(c.model, c.domain.name) for c in cells if c.kind == name] == [("m", "a")]
    assert [c.domain.name for c in cells if c.kind == "t0.6-p0.95"] == ["a", "b"]
    policy = Policy(lambda prompt, _: "7" if "}" in prompt else "{abcdefgh}"[len(prompt) - 3 :])
    results = await roll_cells(
        roller(policy),
        [c for c in cells if c.kind == name],
        await kept(tmp_path),
        Gallery(CharChat()),
    )
    assert scores_of(results)["sampled"].keys() == {name}
    assert results[0].tokens == 4 * 2 * len("{ab7.")


def test_a_model_whose_domains_do_not_think_is_scored_in_every_other_way():
    cells = cells_of(spec(**with_sampling(BRIEF)), "m", [live("a", float), live("b", float)])
    silent, endless = Thinks(), Thinks()
    silent.may_think = lambda problem: False
    endless.thought_end_ids = ()
    for chat, why in (
        (silent, "it has no thoughts there"),
        (endless, "its tokenizer has no token for the end of a thought"),
    ):
        kept, left_out = that_think(cells, chat)
        assert [c.kind for c in kept] == ["score", "greedy", "score"]
        assert left_out == [f"m in a is not scored as t0.6-think3-wait1: {why}"]
