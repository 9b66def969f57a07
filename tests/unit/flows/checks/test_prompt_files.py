"""A recipe whose problems are rows of files: where they are found, what runs again, what `check`
says of rows, references and rewards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from curricula.built_in_curricula import build as build_curriculum
from curricula.prompt_files.prompt_curriculum import Files
from engines.types import Message, Problem, Status, Transcript
from flows.checks.data import seen_before_cautions
from flows.checks.recipe_checks import cautions, check_recipe, notes
from flows.load import load_recipe
from flows.post_train import plan_post_train
from flows.reasons import planned_identities
from flows.recipe import Recipe
from flows.running.records import store_at
from infra.code.digest import digest_of
from infra.errors import InputError
from infra.store.artifacts import ArtifactStore
from infra.store.manifest import ArtifactRecord
from rewards.built_in_rewards import build
from rewards.rubric import Rubric, Term
from tasks.sft.spec import SftSpec
from tests.parts.chat_parts import random_base
from tests.parts.recipe_parts import domain_of

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("own_home")]

EXACT = {"name": "exact", "outcome": True}


def write(folder: Path, rows: int = 60, name: str = "sums.jsonl", **fields: Any) -> None:
    folder.mkdir(exist_ok=True)
    lines = [{"question": f"{n}+1", "answer": n + 1, **fields} for n in range(rows)]
    (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))


def recipe(folder: Path, options: Any, rewards: Any = (EXACT,), **fields: Any) -> Recipe:
    size = {"hidden_size": 64, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 16}
    written = {
        "name": "own-prompts",
        "base": {"random": {**size, "ffn_size": 64}},
        "experts": {
            "sums": {
                "domain": {
                    "curriculum": {"name": "files", "options": options},
                    "rewards": list(rewards),
                },
                "path": [{"rl": {"steps": 2, "optimizer": {"lr": 2e-4}}}],
            }
        },
        "evaluate": {"problems": 4, "samples": 2},
        **fields,
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(written))
    return load_recipe(str(folder / "recipe.yaml"))


def digests(made: Recipe) -> dict[str, str]:
    return {n: i.digest for n, i in planned_identities(plan_post_train(made)).items()}


def refusal(made: Recipe) -> str:
    with pytest.raises(InputError) as refused:
        check_recipe(made, plan_post_train(made))
    return str(refused.value)


def test_files_beside_the_recipe_pass_the_check_and_their_content_is_the_identity(tmp_path: Path):
    for name in ("one", "two"):
        write(tmp_path / name)
    source: dict[str, Any] = {"files": ["*.jsonl"]}
    one = recipe(tmp_path / "one", {"sources": source})
    check_recipe(one, plan_post_train(one))
    (told,) = cautions(one, plan_post_train(one))
    assert "only 4 rows are held out, so that one answer moves a score by 25 points: raise" in told
    first = digests(one)
    assert digests(recipe(tmp_path / "two", {"sources": [source]})) == first
    bear = {"sources": source | {"max_bad_share": 0.5}}
    assert digests(recipe(tmp_path / "two", bear)) == first
    share = {"sources": source, "shares": {"heldout": 0.2}}
    assert digests(recipe(tmp_path / "two", share))["sums-rl"] != first["sums-rl"]
    write(tmp_path / "two", 61)
    assert digests(recipe(tmp_path / "two", {"sources": source}))["sums-rl"] != first["sums-rl"]


def test_check_refuses_what_the_stages_would_stop_at(tmp_path: Path):
    write(tmp_path)
    files = {"files": ["sums.jsonl"]}
    few = recipe(tmp_path, {"sources": files}, evaluate={"problems": 40})
    assert "only 4 rows are held out; set evaluate.problems to 4 or less" in refusal(few)
    gone = recipe(tmp_path, {"sources": {"files": ["sum.jsonl"]}})
    assert "source data: files: no file matches" in refusal(gone)
    column = files | {"columns": {"reference": "gold"}}
    assert "more than max_bad_share" in refusal(recipe(tmp_path, {"sources": column}))


def test_check_refuses_rows_without_what_the_reward_reads_and_names_what_nobody_reads(
    tmp_path: Path,
):
    def named(**more: Any) -> Recipe:
        rows = [{"prompt": f"What is {n} plus 1?", **more} for n in range(60)]
        file = tmp_path / f"{'-'.join(more)}.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return recipe(tmp_path, {"sources": {"files": [file.name]}}, evaluate={"problems": 2})

    said = refusal(named(completion="1"))
    assert "has no reference; the rewards read `answer` of it" in said
    assert "columns that look like one: completion" in said
    for fine in ({"label": "1"}, {"reward_model": {"style": "rule", "ground_truth": "1"}}):
        made = named(**fine, data_source="m")
        check_recipe(made, plan_post_train(made))
        assert any("; not read: data_source" in c for c in cautions(made, plan_post_train(made)))


NO_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_check_says_which_prompts_the_template_does_not_write(tmp_path: Path):
    base = random_base(tmp_path / "base")
    (base / "chat_template.jinja").write_text(NO_SYSTEM)
    rows = [[{"role": "user", "content": f"{n}+1?"}] for n in range(60)]
    for messages in rows[5::14]:
        messages.insert(0, {"role": "system", "content": "Be brief."})
    lines = [{"prompt": messages, "answer": str(n + 1)} for n, messages in enumerate(rows)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = {"sources": {"files": ["*.jsonl"]}, "shares": {"heldout": 0.2}}
    made = recipe(tmp_path, options, base={"folder": str(base)})
    check_recipe(made, plan_post_train(made))
    (caution,) = [
        text for text in cautions(made, plan_post_train(made)) if "cannot be written" in text
    ]
    assert "prompts cannot be written with chat_template.jinja" in caution
    assert "sums.jsonl:" in caution
    assert "System role not supported" in caution
    assert "bounds.max_failed_share" in caution


def test_check_refuses_prompts_longer_than_the_context_and_counts_few_of_them(tmp_path: Path):
    base = random_base(tmp_path / "base")
    lines = [{"question": f"{n}+1" + " w" * 9000 * (n < 9), "answer": n + 1} for n in range(60)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    source, shares = {"files": ["*.jsonl"]}, {"heldout": 0.2}
    options: dict[str, Any] = {"sources": source, "shares": shares}
    said = refusal(recipe(tmp_path, options, base={"folder": str(base)}))
    assert "(9 too_long), more than max_bad_share 0.01" in said
    assert "sums.jsonl:1, sums.jsonl:2, " in said
    options["sources"] = source | {"max_bad_share": 0.2}
    made = recipe(tmp_path, options, base={"folder": str(base)})
    told = "".join(cautions(made, plan_post_train(made)))
    assert "9 bad rows left out (9 too_long): sums.jsonl:1, sums.jsonl:2, " in told


def test_check_says_what_becomes_of_a_call_where_nothing_answers_it(tmp_path: Path):
    write(tmp_path, tools=[{"type": "function", "function": {"name": "add", "parameters": {}}}])
    made = recipe(tmp_path, {"sources": {"files": ["*.jsonl"]}, "shares": {"heldout": 0.2}})
    (said,) = [line for line in notes(made, plan_post_train(made)) if "offer tools" in line]
    assert "no call is run; a rollout ends with its first turn" in said


def test_check_says_that_a_reward_fits_no_row(tmp_path: Path):
    write(tmp_path)
    boxed = recipe(
        tmp_path, {"sources": {"files": ["*.jsonl"]}}, [{"name": "math", "outcome": True}]
    )
    said = list(cautions(boxed, plan_post_train(boxed)))
    (line,) = [line for line in said if "math gives 0 to all of 8 solutions that the rows" in line]
    assert r"`math` reads the answer from \boxed{}: ask for that in the source's `instr" in line
    assert "no boxed answers" in line
    asked = {"files": ["*.jsonl"], "instruction": "Put the answer in \\boxed{}."}
    right = recipe(tmp_path, {"sources": asked}, [{"name": "math", "outcome": True}])
    assert not [line for line in cautions(right, plan_post_train(right)) if "gives 0" in line]
    write(tmp_path, name="other.jsonl")
    twice = recipe(tmp_path, {"sources": {"files": ["*.jsonl"]}})
    said = list(cautions(twice, plan_post_train(twice)))
    assert any("60 rows left out, as an earlier one" in line for line in said)


@pytest.mark.parametrize("reward", ["exact", "math"])
def test_check_says_that_references_are_whole_solutions(tmp_path: Path, reward: str):
    write(tmp_path)
    rows = [{"question": f"{n}+1", "answer": f"One more.\n#### {n + 1}\nDone."} for n in range(60)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    outcome = [{"name": reward, "outcome": True}]
    sources: dict[str, Any] = {"files": ["*.jsonl"]}
    whole = recipe(tmp_path, {"sources": sources}, outcome)
    said = list(cautions(whole, plan_post_train(whole)))
    assert [line for line in said if '`reference_pattern` to "#### (.+)"' in line], said
    result = recipe(tmp_path, {"sources": {**sources, "reference_pattern": r"#### (\d+)"}}, outcome)
    said = list(cautions(result, plan_post_train(result)))
    assert not [line for line in said if "reference_pattern" in line]


@pytest.mark.parametrize(
    ("reward", "cells", "is_said"),
    [
        ({"name": "exact"}, ["1.0", "2.0"], True),
        ({"name": "regex", "options": {"pattern": ".+"}}, ["1.5", "-2.00"], True),
        ({"name": "math"}, ["1.0", "2.0"], False),
        ({"name": "exact"}, ["1.5", "2.25"], False),
        ({"name": "exact"}, ["1.0", "one"], False),
    ],
)
def test_check_says_that_a_csv_has_whole_numbers_as_texts_with_a_point(
    tmp_path: Path, reward: dict[str, Any], cells: list[str], is_said: bool
):
    lines = [f"{n} minus {n}?,{cells[n % 2]}" for n in range(60)]
    (tmp_path / "sums.csv").write_text("\n".join(["question,answer", *lines]))
    source = {"files": ["*.csv"], "instruction": "Put the answer in \\boxed{}."}
    made = recipe(tmp_path, {"sources": source}, [reward | {"outcome": True}])
    said = [c for c in cautions(made, plan_post_train(made)) if 'astype("Int64")' in c]
    assert len(said) == is_said, said


@pytest.mark.parametrize(
    ("answers", "said"), [([1.0, 2.0, 3.0], "2"), ([True, False, True], "false")]
)
async def test_a_column_of_numbers_or_truth_values_is_matched_and_shown_as_people_write_it(
    tmp_path: Path, answers: list[Any], said: str
):
    rows = [{"question": f"{n}?", "answer": answers[n % 3]} for n in range(60)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = recipe(tmp_path, {"sources": {"files": ["*.jsonl"]}, "shares": {"sft": 0.5}})
    assert not [line for line in cautions(made, plan_post_train(made)) if "gives 0" in line]
    options = {"sources": {"files": [str(tmp_path / "sums.jsonl")]}, "shares": {"sft": 0.5}}
    curriculum = build_curriculum("files", options)
    shown = curriculum.demonstrations(20, seed=0)
    assert said in {demonstration.turns[-1].content for demonstration in shown}
    assert not any(d.turns[-1].content in ("2.0", "False") for d in shown)
    for d in shown:
        transcript = Transcript(d.problem, d.turns, Status.COMPLETED, 3)
        assert (await build("exact")(transcript)).score == 1


@pytest.mark.parametrize(
    ("options", "rewards", "said"),
    [
        (
            {"sources": {"file": ["x"]}},
            [EXACT],
            r"sources\.0\.file: unknown field; did you",
        ),
        ({"sources": {"files": []}}, [EXACT], r"options\.sources\.0\.files: "),
        ({}, [EXACT], r"options\.sources: is missing"),
        (
            {"sources": {"files": ["x"]}, "shares": {"heldout": 0.7, "sft": 0.6}},
            [EXACT],
            r"options\.shares: heldout, distill and sft are 1\.3 together",
        ),
        (
            {"sources": {"files": ["x"], "reference_pattern": "("}},
            [EXACT],
            r"reference_pattern: is no regular expression",
        ),
        (
            {"sources": [{"files": ["x"]}, {"files": ["y"]}]},
            [EXACT],
            r"two sources have one name \(data, data\)",
        ),
        ({"sources": {"files": ["x"]}}, [EXACT | {"sources": ["more"]}], "has data"),
        (
            {"sources": [{"files": ["x"], "name": "a"}, {"files": ["x"], "name": "b"}]},
            [EXACT | {"sources": ["a"]}],
            "0 rewards of source 'b' say `outcome: true`",
        ),
    ],
)
def test_what_is_written_wrong_is_named(tmp_path: Path, options: Any, rewards: Any, said: str):
    with pytest.raises(InputError, match=said):
        recipe(tmp_path, options, rewards)


async def test_each_source_is_judged_by_its_own_reward(tmp_path: Path):
    terms = [
        Term("exact", 1.0, True, build("exact"), ("words",)),
        Term("math", 1.0, True, build("math"), ("sums",)),
        Term("length", 0.5, False, build("length", {"budget": 8, "margin": 8})),
    ]
    rubric = Rubric(terms)

    async def judged(source: str, said: str) -> dict[str, float]:
        problem = Problem("p", "d", (), {"answer": "42"}, metadata={"source": source})
        told = Transcript(problem, (Message("assistant", said),), Status.COMPLETED, 0)
        return (await rubric.judge(told)).breakdown

    assert await judged("words", " 42 ") == {"outcome": 1.0, "length": 0.0, "length/excess": 0.0}
    assert (await judged("words", r"\boxed{42}"))["outcome"] == 0.0
    assert (await judged("sums", r"\boxed{42}"))["outcome"] == 1.0


@pytest.mark.parametrize(
    ("name", "options", "answer", "said", "score"),
    [
        ("exact", {}, "a  b", "a b\n", 1.0),
        ("exact", {}, "A", "a", 0.0),
        ("exact", {"ignore_case": True}, ["x", "A"], "a", 1.0),
        ("exact", {}, 42, "42", 1.0),
        ("regex", {"pattern": "Answer: (.+)"}, "42", "Answer: 41\nAnswer: 42", 1.0),
        ("regex", {"pattern": "Answer: (.+)"}, "42", "42", 0.0),
        ("regex", {"pattern": r"\d+"}, "42", "It is 42.", 1.0),
    ],
)
async def test_a_reply_is_compared_with_the_reference(
    name: str, options: Any, answer: Any, said: str, score: float
):
    problem = Problem("p", "d", (), {"answer": answer})
    told = Transcript(problem, (Message("assistant", said),), Status.COMPLETED, 1)
    assert (await build(name, options)(told)).score == score


def test_own_conversations_are_compared_with_the_held_out_rows(tmp_path: Path):
    write(tmp_path)
    talk = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    (tmp_path / "chats.jsonl").write_text(json.dumps({"messages": talk}) + "\n")
    made = recipe(tmp_path, {"sources": {"files": ["sums.jsonl"]}})
    data = {"files": [str(tmp_path / "chats.jsonl")]}
    sft = {"steps": 2, "optimizer": {"lr": 1e-3}, "data": data, "decontaminate": 8}
    written = made.model_dump(mode="json")
    written["experts"]["sums"]["path"] = [{"sft": sft}]
    held_out = Recipe.model_validate(written)
    check_recipe(held_out, plan_post_train(held_out))
    spec = next(s.spec for s in plan_post_train(held_out) if s.name == "sums-sft")
    assert isinstance(spec, SftSpec)
    assert [each.name for each in spec.held_out] == ["files"]
    written["experts"]["sums"]["domain"]["curriculum"] = {"name": "general"}
    with pytest.raises(InputError, match="decontaminate: compares with held-out rows"):
        plan_post_train(Recipe.model_validate(written))


def conversations(folder: Path, asked: list[str]) -> dict[str, Any]:
    said = {"role": "assistant", "content": "So it is."}
    rows = [{"messages": [{"role": "user", "content": each}, said]} for each in asked]
    (folder / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"files": [str(folder / "chats.jsonl")]}


def seen(recipe: Recipe) -> list[str]:
    return list(seen_before_cautions(recipe, plan_post_train(recipe)))


def test_held_out_questions_in_the_conversations_before_are_named(tmp_path: Path):
    write(tmp_path)
    options = {"sources": {"files": ["sums.jsonl"]}, "shares": {"heldout": 0.5}}
    made = recipe(tmp_path, options)
    domain = domain_of(made.experts["sums"])
    files = build_curriculum(domain.curriculum.name, domain.curriculum.options)
    assert isinstance(files, Files)
    drawn = files.problems("heldout", files.num_rows("heldout"), 0)
    held_out = [problem.messages[-1].content for problem in drawn]
    trained = [p.messages[-1].content for p in files.problems("rl", 5, 0)]
    data = conversations(tmp_path, [*trained, f"  {held_out[0]}\n", held_out[1], held_out[1]])

    def with_sft(**more: Any) -> Recipe:
        sft = {"steps": 2, "optimizer": {"lr": 1e-4}, "data": data, **more}
        experts = made.model_dump(mode="json", exclude_unset=True)["experts"]
        experts["sums"]["path"] = [{"sft": sft}, {"rl": {"steps": 2, "optimizer": {"lr": 1e-4}}}]
        return recipe(tmp_path, options, experts=experts)

    (said,) = seen(with_sft())
    number = f"2 of the {len(held_out)} held-out questions of domain sums stand in its rows"
    assert said.startswith(f"experts.sums.path.0.sft.data: {number}, e.g. ")
    assert "in chats.jsonl:6: scores on them tell" in said
    assert "set experts.sums.path.0.sft.decontaminate: 13" in said
    assert said in list(cautions(with_sft(), plan_post_train(with_sft())))
    assert seen(with_sft(decontaminate=13)) == []
    assert seen(made) == []


def test_the_base_s_own_conversations_count_where_it_is_an_artifact(tmp_path: Path):
    write(tmp_path)
    options = {"sources": {"files": ["sums.jsonl"], "split": "heldout"}}
    data = conversations(tmp_path, ["3+1", "another"])
    artifacts = ArtifactStore(store_at(f"file://{tmp_path / 'store'}"), tmp_path / "cache")
    (tmp_path / "made").mkdir()

    def stored(kind: str, settings: dict[str, Any], inputs: dict[str, str]) -> ArtifactRecord:
        return artifacts.commit(
            kind, digest_of([kind]), 1, tmp_path / "made", identity={"settings": settings},
            inputs=inputs, code={}, run="first", stage=f"sums-{kind}", metrics={}, seeds={},
            mlflow_run_id="", seconds=1.0,
        )  # fmt: skip

    learned = stored("sft", {"data": [data]}, {})
    folder = stored("rl", {"steps": 2}, {"model": learned.digest}).url
    (said,) = seen(recipe(tmp_path, options, base={"folder": folder}))
    assert said.startswith("base, made by sums-sft of first: 1 of the 60 held-out questions")
