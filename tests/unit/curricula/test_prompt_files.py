"""The `files` curriculum: what a row is as a problem, which split it is in, what is left out."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curricula.prompt_files.contamination import HeldOutWords, runs
from curricula.prompt_files.index import split_of
from curricula.prompt_files.prompt import read_prompt
from curricula.prompt_files.prompt_curriculum import Files, Mixture
from curricula.prompt_files.spec import PromptSource, Shares
from engines.draws import draw_problems
from engines.rollout.roller import Roller
from engines.types import Json, Message, Problem, RowCurriculum, Split, Tool
from infra.data_files.rows import BadRow
from infra.errors import InputError, TrainingStopped
from infra.home import home
from tasks.domain import Domain
from tasks.live_domain import open_domain
from tests.parts.rollout_parts import CharChat, Policy

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("own_home")]


def row(number: int) -> dict[str, Any]:
    return {"question": f"What is {number} plus 1?", "answer": number + 1}


def write(file: Path, rows: Sequence[Any]) -> str:
    file.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))
    return str(file)


def source(**fields: Any) -> PromptSource:
    return PromptSource.model_validate({"files": ["x.jsonl"], **fields})


def every(made: Files, split: Split) -> list[Problem]:
    return list(made.problems(split, made.num_rows(split), 0)) if made.num_rows(split) else []


def asked(problems: Sequence[Problem]) -> list[str]:
    return [problem.messages[-1].content for problem in problems]


def test_a_text_is_a_prompt_and_its_reference_is_an_answer():
    found = read_prompt({"question": "12+30", "answer": "42", "note": "x"}, source())
    assert found.messages == (Message("user", "12+30"),)
    assert (found.reference, found.solution) == ({"answer": "42"}, "42")
    worded = source(
        system="Be brief.",
        instruction="Box it.",
        columns={"prompt": "q", "reference": "a", "solution": "work", "metadata": ["level"]},
        reference_pattern="#### (.+)",
    )
    given = {"q": "12+30", "a": "so 1 #### 1\n#### 42", "work": "12+30=42", "level": 3}
    found = read_prompt(given, worded)
    assert found.messages == (Message("system", "Be brief."), Message("user", "12+30\n\nBox it."))
    assert (found.reference, found.solution) == ({"answer": "42"}, "12+30=42")
    assert found.metadata == {"level": 3}
    assert read_prompt({"prompt": "a", "reference": {"unit": "m"}}, source()).reference == {
        "unit": "m"
    }
    assert read_prompt({"prompt": "a"}, source()).reference == {}
    found = read_prompt({"prompt": None, "problem": "b", "answer": None, "target": 3}, source())
    assert (found.messages, found.reference) == ((Message("user", "b"),), {"answer": 3})


def test_messages_are_a_prompt_up_to_the_last_question():
    look: dict[str, Json] = {"name": "look", "parameters": {"type": "object"}}
    talk = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yo"},
        {"role": "user", "content": "12+30"},
        {"role": "assistant", "content": "42"},
    ]
    for name in ("prompt", "messages"):
        found = read_prompt({name: talk, "tools": [look], "answer": 42}, source())
        named = {f"{name}, what the assistant says last"} if name == "prompt" else set()
        assert found.unread == named
        assert asked([Problem("i", "d", found.messages)]) == ["12+30"]
        assert len(found.messages) == 4
        assert found.tools == (Tool("look", "", {}, schema=look),)
    shared = {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yo"}]}
    assert read_prompt(shared, source()).messages == (Message("user", "Hi"),)


@pytest.mark.parametrize(
    ("given", "fields", "said"),
    [
        ({"text": "x"}, {}, "has no column prompt; it has text"),
        ({"prompt": "x"}, {"columns": {"reference": "gold"}}, "has no column gold"),
        ({"prompt": " "}, {}, "the user says nothing"),
        ({"prompt": 3}, {}, "prompt: is no list of messages"),
        ({"prompt": "x", "answer": ""}, {"columns": {"reference": "answer"}}, "answer: is empty"),
        ({"prompt": "x", "answer": "42"}, {"reference_pattern": "####"}, "has no match of '####'"),
        ({"prompt": "x", "a": float("nan")}, {"columns": {"reference": "a"}}, "a: is empty"),
        ({"prompt": "x", "answer": ["42", " "]}, {}, "answer: holds an empty answer"),
        ({"prompt": "x", "answer": {"answer": " "}}, {"needs": ["answer"]}, "the rewards read"),
        ({"prompt": "x", "label": '{"gt": 1, "truth": 2}'}, {"needs": ["answer"]}, r"label\.gt`"),
        (
            {"chat": [{"role": "boss", "content": "x"}]},
            {"columns": {"prompt": "chat"}},
            r"^chat\[0\]: the role is 'boss'",
        ),
    ],
)
def test_a_row_that_is_no_prompt_is_refused(given: Any, fields: Any, said: str):
    with pytest.raises(BadRow, match=said):
        read_prompt(given, source(**fields))


def test_content_decides_the_split_and_others_do_not_move_it(tmp_path: Path):
    file = write(tmp_path / "a.jsonl", list(map(row, range(400))))
    options: dict[str, Any] = {
        "sources": {"files": [file]},
        "shares": {"heldout": 0.2, "distill": 0.3, "sft": 0.1},
    }
    made = Files(**options)
    assert isinstance(made, RowCurriculum)
    assert made.counts[0].splits == {"sft": 32, "rl": 167, "distill": 122, "heldout": 79}
    splits: tuple[Split, ...] = ("sft", "rl", "distill", "heldout")
    of = {text: s for s in splits for text in asked(every(made, s))}
    assert len(of) == 400
    write(tmp_path / "a.jsonl", [row(900), *map(row, reversed(range(200)))])
    smaller = Files(**options)
    now = {text: s for s in splits for text in asked(every(smaller, s))}
    assert len(now) == 201
    assert all(of.get(text, s) == s for text, s in now.items())
    # By hand: a quarter of the way is held out of 0.3, a half is `rl`, the end is `distill`.
    shares = Shares(heldout=0.3, distill=0.2, sft=0.1)
    places = [split_of(int(at * 2**64), source(), shares) for at in (0.25, 0.5, 0.75, 0.85)]
    assert places == ["heldout", "rl", "sft", "distill"]
    # Of a source for training nothing is held out: 0.3 + 0.7 x 0.1 = 0.37, and 0.3 + 0.7 x 0.9.
    training = source(split="train")
    assert [split_of(int(at * 2**64), training, shares) for at in (0.1, 0.9)] == ["rl", "distill"]
    assert split_of(2**63, source(split="heldout"), shares) == "heldout"


def test_an_epoch_has_every_row_once_and_the_next_one_ids_of_its_own(tmp_path: Path):
    file = write(tmp_path / "a.jsonl", list(map(row, range(30))))
    made = Files(sources={"files": [file]}, shares={"heldout": 0})
    two = draw_problems(made, "rl", 60, seed=3)
    first, second = two[:30], two[30:]
    assert sorted(asked(first)) == sorted(asked(second)) == sorted(asked(every(made, "rl")))
    assert asked(first) != asked(second)
    assert [p.id.endswith("@2") for p in two] == [False] * 30 + [True] * 30
    assert draw_problems(made, "rl", 7, seed=3, start=28) == two[28:35]
    assert draw_problems(made, "rl", 30, seed=4) != first
    assert two[0].metadata == {"source": "data"}
    with pytest.raises(InputError, match=r"in the split 'heldout'; raise shares\.heldout"):
        draw_problems(made, "heldout", 1, seed=0)
    with pytest.raises(InputError, match=r"no row is in the split 'distill'; set shares\.distill"):
        draw_problems(made, "distill", 1, seed=0)


def test_sources_are_mixed_by_weight_and_the_held_out_split_ends(tmp_path: Path):
    one = write(tmp_path / "a.jsonl", list(map(row, range(100))))
    two = write(tmp_path / "b.jsonl", list(map(row, range(100, 110))))
    sources = [
        {"name": "sums", "files": [one], "weight": 3},
        {"name": "more", "files": [two], "split": "train"},
    ]
    made = Files(sources=sources, shares={"heldout": 0.5})
    of = [p.metadata["source"] for p in draw_problems(made, "rl", 40, seed=0)]
    assert of[:8] == ["sums", "sums", "sums", "more"] * 2
    held_out = made.num_rows("heldout")
    assert all(p.metadata["source"] == "sums" for p in every(made, "heldout"))
    with pytest.raises(InputError, match=rf"only {held_out} rows .* set evaluate.problems to"):
        made.problems("heldout", held_out + 1, 0)
    assert [Mixture([1.0, 1.0], [1, 3]).turn(at) for at in range(5)] == [
        (0, 0), (1, 0), (1, 1), (1, 2), None,
    ]  # fmt: skip


def test_a_held_out_prompt_is_never_trained_on_whatever_file_it_is_in(tmp_path: Path):
    train = write(tmp_path / "train.jsonl", [*map(row, range(50)), row(7), row(49)])
    test = write(tmp_path / "test.jsonl", list(map(row, range(40, 60))))
    sources = [
        {"name": "train", "files": [train], "split": "train"},
        {"name": "test", "files": [test], "split": "heldout"},
    ]
    made = Files(sources=sources)
    assert not set(asked(every(made, "rl"))) & set(asked(every(made, "heldout")))
    assert (made.num_rows("rl"), made.num_rows("heldout")) == (40, 20)
    assert [counts.duplicates for counts in made.counts] == [12, 0]
    assert any("train: 12 rows left out, as an earlier" in line for line in made.left_out)


def test_bad_rows_are_named_and_too_many_stop(tmp_path: Path):
    rows: list[Any] = [{"id": n, **row(n)} for n in range(100)]
    rows[3], rows[7] = "{broken", {"id": 6, "question": "another", "answer": 1}
    rows[9] = {"id": 8, **row(8)}
    given = {"files": [write(tmp_path / "a.jsonl", rows)], "columns": {"id": "id"}}
    made = Files(sources=given | {"max_bad_share": 0.02})
    counts = made.counts[0]
    assert (counts.read, counts.bad, counts.duplicates) == (100, {"not_json": 1, "same_id": 1}, 1)
    assert [line.split(": ")[0] for line in counts.named] == ["a.jsonl:4", "a.jsonl:8"]
    assert {p.id.split("/")[-1] for p in every(made, "rl")} < {str(n) for n in range(100)}
    assert list(made.warnings) == []  # they are few
    with pytest.raises(TrainingStopped, match=r"^2 of the 100 rows .* \(1 not_json, 1 same_id"):
        Files(sources=given | {"max_bad_share": 0.01}).num_rows("rl")
    with pytest.raises(InputError, match="source data: files: no file matches"):
        Files(sources={"files": [str(tmp_path / "none.jsonl")]}).num_rows("rl")


def test_rows_that_share_words_with_what_is_held_out_are_counted_and_shown(tmp_path: Path):
    told = "a farmer has seven white sheep and buys three more black sheep at the market"
    train = [
        {"prompt": f"Riddle: {told.upper()}, how many?", "answer": 10},
        {"prompt": "a farmer has seven white goats and buys three more", "answer": 10},
        {"prompt": "Short?", "answer": 1},
    ]
    test = [{"prompt": f"Today, {told}!", "answer": 10}, {"prompt": "short", "answer": 1}]
    sources = [
        {"name": "train", "files": [write(tmp_path / "train.jsonl", train)], "split": "train"},
        {"name": "test", "files": [write(tmp_path / "test.jsonl", test)], "split": "heldout"},
    ]
    made = Files(sources=sources, decontaminate=8)
    assert asked(every(made, "rl")) == [train[1]["prompt"]]
    assert made.counts[0].contaminated == 2
    (warning,) = made.warnings
    assert warning.what == "2 of the 5 rows that were read were left out"
    assert warning.cause.startswith("2 contaminated; e.g. train.jsonl:1: shares 'a farmer has")
    assert made.counts[0].hits == [
        "train.jsonl:1: shares 'a farmer has seven white sheep and buys' with test.jsonl:1, which"
        " is held out",
        "train.jsonl:3: shares 'short' with test.jsonl:2, which is held out",
    ]
    assert len(every(Files(sources=sources, decontaminate=0), "rl")) == 3
    # By hand: three words give two runs of two; a shorter text is one run, which is no part.
    assert list(runs("One, TWO three", 2)) == [("one", "two"), ("two", "three")]
    assert list(runs("\uff2fne", 2)) == [("one",)]
    words = HeldOutWords(3)
    words.add("x", "one two")
    assert words.shared_with("one two three four") is None
    assert words.shared_with("One two!") == ("one two", "x")


def test_prompts_that_differ_in_what_was_called_or_thought_are_two(tmp_path: Path):
    def asked_of(city: str, thought: str = "") -> dict[str, Any]:
        call = {"function": {"name": "weather", "arguments": {"city": city}}}
        return {
            "messages": [
                {"role": "user", "content": "Go on."},
                {"role": "assistant", "content": "", "tool_calls": [call], "reasoning": thought},
                {"role": "tool", "content": "sunny"},
            ]
        }

    rows = [asked_of("Rome"), asked_of("Oslo"), asked_of("Rome"), asked_of("Rome", "Sunny?")]
    made = Files(sources={"files": [write(tmp_path / "a.jsonl", rows)]}, shares={"heldout": 0})
    assert (made.num_rows("rl"), made.counts[0].duplicates) == (3, 1)


def test_a_cell_of_metadata_may_be_empty_in_parquet_as_in_jsonl(tmp_path: Path):
    rows = [row(1) | {"level": 3}, row(2) | {"level": None}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    write(tmp_path / "a.jsonl", rows)
    for name in ("a.parquet", "a.jsonl"):
        sources = {"files": [str(tmp_path / name)], "columns": {"metadata": ["level"]}}
        made = Files(sources=sources, shares={"heldout": 0})
        levels = {p.messages[0].content: p.metadata["level"] for p in every(made, "rl")}
        assert levels == {row(1)["question"]: 3, row(2)["question"]: None}, name


def test_an_epoch_of_a_source_is_shuffled_once_however_many_sources_take_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    sources = [
        {"name": f"s{n}", "files": [write(tmp_path / f"{n}.jsonl", [row(n), row(n + 20)])]}
        for n in range(10)
    ]
    made = Files(sources=sources, shares={"heldout": 0})
    shuffled: list[str] = []

    class Counted(random.Random):
        def __init__(self, seed: str) -> None:
            shuffled.append(seed)
            super().__init__(seed)

    monkeypatch.setattr("curricula.splits.random.Random", Counted)
    assert len(set(asked(made.problems("rl", 20, 0)))) == 20
    assert sorted(shuffled) == [f"0/rl/s{n}/0" for n in range(10)]
    for position in (19, 20, 19, 20):  # rollouts of both epochs are under way
        made.problems("rl", 1, 0, position)
    assert sorted(shuffled[10:]) == ["0/rl/s0/1"]


def test_a_column_cannot_take_the_place_of_the_source_s_name():
    with pytest.raises(InputError, match=r"metadata: the metadata's `source` is the name of"):
        Files(sources={"files": ["x.jsonl"], "columns": {"metadata": ["source"]}})


def test_parquet_gives_the_same_problems_as_jsonl(tmp_path: Path):
    rows = list(map(row, range(40)))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=7)
    parquet = Files(sources={"files": [str(tmp_path / "a.parquet")]})
    lines = Files(sources={"files": [write(tmp_path / "b.jsonl", rows)]})
    for split in ("rl", "heldout"):
        assert sorted(map(repr, every(parquet, split))) == sorted(map(repr, every(lines, split)))


def test_the_files_are_read_once_a_machine_and_again_when_they_change(tmp_path: Path):
    file = write(tmp_path / "a.jsonl", list(map(row, range(20))))
    kept = home() / "cache/prompts"
    for _ in range(2):
        Files(sources={"files": [file]}).num_rows("rl")
    assert len(list(kept.iterdir())) == 1
    write(tmp_path / "a.jsonl", list(map(row, range(21))))
    assert Files(sources={"files": [file]}).counts[0].read == 21
    assert len(list(kept.iterdir())) == 2, "and no draft is left"


def test_what_a_row_says_of_thinking_goes_before_the_option(tmp_path: Path):
    rows = [row(n) | ({"enable_thinking": n % 2 == 0} if n < 6 else {}) for n in range(12)]
    file = write(tmp_path / "rows.jsonl", rows)
    made = Files(sources={"files": [file]}, shares={"heldout": 0}, thinking=True)
    found = {p.messages[0].content: p.thinking for p in every(made, "rl")}
    assert found == {row(n)["question"]: n >= 6 or n % 2 == 0 for n in range(12)}


def test_solutions_are_demonstrations(tmp_path: Path):
    file = write(tmp_path / "a.jsonl", list(map(row, range(20))))
    made = Files(sources={"files": [file]}, shares={"sft": 0.5}, thinking=True)
    (shown,) = made.demonstrations(1, 0)
    assert shown.turns[0].content == str(shown.problem.reference["answer"])
    assert (shown.turns[0].reasoning, shown.problem.thinking) == ("so", True)
    assert len(made.examples(8, 0)) == 8
    bare = [{"prompt": f"Tell of {n}"} for n in range(20)]
    made = Files(sources={"files": [write(tmp_path / "b.jsonl", bare)]}, shares={"sft": 0.9})
    assert made.examples(8, 0) == []
    with pytest.raises(InputError, match=r"no solution .* columns\.solution"):
        made.demonstrations(1, 0)


async def test_rows_are_rolled_out_and_judged_by_the_reward_of_their_source(tmp_path: Path):
    for name in ("sums", "words"):
        write(
            tmp_path / f"{name}.jsonl", [{"prompt": f"{name} {n}", "answer": n} for n in range(9)]
        )
    domain = Domain.model_validate(
        {
            "name": "mixed",
            "curriculum": {
                "name": "files",
                "options": {
                    "sources": [
                        {"name": name, "files": [str(tmp_path / f"{name}.jsonl")]}
                        for name in ("sums", "words")
                    ],
                    "shares": {"heldout": 0},
                },
            },
            "rewards": [
                {"name": "exact", "outcome": True, "sources": ["sums"]},
                {"name": "math", "outcome": True, "sources": ["words"]},
            ],
        }
    )
    opened = open_domain(domain)
    assert opened.processes == []
    problems = draw_problems(opened.live.curriculum, "rl", 8, seed=0)
    for name in ("sums", "words"):
        (tmp_path / f"{name}.jsonl").unlink()
    elsewhere = open_domain(domain).live  # as a rollout worker on another host opens it
    policy: Any = Policy(lambda prompt, _: prompt.strip("<>").split()[-1])  # it repeats the number
    chat: Any = CharChat()
    roller = Roller(generate=policy.generate, chat=chat, context_length=99, seed=0)
    outcomes: dict[str, set[float]] = {"sums": set(), "words": set()}
    for problem in problems:
        rollouts = await roller.roll_group(
            elsewhere, problem, 2, temperature=1.0, group_id=problem.id, seed_name=problem.id
        )
        outcomes[str(problem.metadata["source"])] |= {r.rewards["outcome"] for r in rollouts}
    assert outcomes == {"sums": {1.0}, "words": {0.0}}, "`math` wants a box"


def test_a_pattern_of_the_user_s_searches_in_a_process_of_its_own():
    domain = Domain.model_validate(
        {
            "name": "words",
            "curriculum": {"name": "files", "options": {"sources": {"files": ["x.jsonl"]}}},
            "rewards": [{"name": "regex", "options": {"pattern": r"(\w+\s?)+!"}, "outcome": True}],
        }
    )
    (process,) = open_domain(domain).processes
    assert process.name == "reward 'regex'"
