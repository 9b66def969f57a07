"""Rows of the `files` curriculum: which are bad, and which are the same problem."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

from curricula.prompt_files.prompt_curriculum import Files
from engines.chat import Chat
from engines.rollout.drivers.driver import Conversation, LiveDomain
from engines.rollout.roller import Roller
from engines.types import Generation, Problem, Sampling, Status, TokenIds, Transcript, Verdict
from rewards.rubric import Rubric, Term
from tests.parts.chat_parts import QWEN3, QWEN_TOKENS, chat_folder
from tests.parts.sample_parts import generation_of

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("own_home")]


def write(file: Path, rows: Sequence[Any]) -> str:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def every(made: Files) -> list[Problem]:
    return list(made.problems("rl", made.num_rows("rl"), 0))


@pytest.mark.parametrize("columns", [{}, {"reference": "answer"}])
@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl"])
def test_a_number_that_is_none_is_no_reference_and_harmless_elsewhere(
    tmp_path: Path, name: str, columns: dict[str, str]
):
    nan = float("nan")
    rows = {
        "question": ["1 and 1?", "2 and 2?"],
        "answer": [2.0, nan],
        "target": [nan, nan],
        "score": [nan, float("inf")],
    }
    pq.write_table(pa.table(rows), tmp_path / "a.parquet")
    write(tmp_path / "a.jsonl", pa.table(rows).to_pylist())
    given = {"files": [str(tmp_path / name)], "columns": columns, "max_bad_share": 1}
    made = Files(sources=given, shares={"heldout": 0})
    assert made.counts[0].named == [f"{name}:2: answer: NaN is no JSON"]
    assert {p.messages[0].content: p.reference for p in every(made)} == {
        "1 and 1?": {"answer": 2.0}
    }


def test_prompts_that_differ_in_white_space_are_different_problems(tmp_path: Path):
    prompts = [
        "Sort:\n1 2\n3",
        "Sort:\n1\n2 3",
        "def f():\n    if x:\n        y()\n    z()",
        "def f():\n    if x:\n        y()\n        z()",
        "a  b",
        "a b",
        "a\n\nb",
        "a\nb",
        "a\nassistant: b\nuser: c",
        [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": "c"},
        ],
    ]
    same = ["Sort:\n1 2  \n3\n", "\na\r\nb\r\n", " a b "]
    rows = [{"prompt": p, "answer": n} for n, p in enumerate([*prompts, *same])]
    made = Files(sources={"files": [write(tmp_path / "a.jsonl", rows)]}, shares={"heldout": 0})
    problems = every(made)
    answers = [p.reference for p in problems]
    assert all({"answer": n} in answers for n in range(len(prompts)))
    assert len({p.id for p in problems}) == len(problems) == len(prompts)
    assert made.counts[0].duplicates == len(same)


def test_prompts_that_differ_in_the_offered_tools_are_two(tmp_path: Path):
    def asked_with(name: str, about: str, kind: str) -> dict[str, Any]:
        of_city = {"type": "object", "properties": {"city": {"type": kind}}}
        tool = {"name": name, "description": about, "parameters": of_city}
        return {
            "prompt": "What is the weather?",
            "tools": [tool],
            "answer": f"{name} {about} {kind}",
        }

    tools = [("a", "looks", "string"), ("b", "looks", "string"), ("a", "asks", "string")]
    rows = [asked_with(*each) for each in [*tools, ("a", "looks", "integer"), tools[0]]]
    rows += [{"prompt": "What is the weather?", "answer": "no tool"}]
    made = Files(sources={"files": [write(tmp_path / "a.jsonl", rows)]}, shares={"heldout": 0})
    assert (made.num_rows("rl"), made.counts[0].duplicates) == (5, 1)
    assert len({problem.id for problem in every(made)}) == 5


def test_a_prompt_may_be_messages_as_json_text_and_a_text_that_looks_like_json(tmp_path: Path):
    said = [{"name": "ann", "role": "user", "content": "a"}]
    texts = ['[{"id": 1, "role": "x"}]: which role?', "[1, 2]", '{"role": "user"}']
    prompts = [json.dumps(said), json.dumps([{"content": "b", "role": "user"}]), *texts]
    rows = [{"prompt": text, "answer": 1} for text in prompts]
    made = Files(sources={"files": [write(tmp_path / "a.jsonl", rows)]}, shares={"heldout": 0})
    assert {p.messages[0].content for p in every(made)} == {"a", "b", *texts}


@pytest.mark.parametrize(
    ("properties", "arguments", "status"),
    [
        ({"at": {"type": "string"}}, '{"at": "ant"}', Status.COMPLETED),
        ({"at": {"type": "string"}}, "{}", Status.MALFORMED),
        ({"at": {"type": "string"}}, '{"at": 3}', Status.MALFORMED),
        ({"at": {"type": "string"}}, '{"at": "ant", "by": 3}', Status.MALFORMED),
        ({"at": {"type": ["string", "null"]}}, '{"at": null}', Status.COMPLETED),
        (
            {"at": {"anyOf": [{"type": "string"}, {"const": 3}]}},
            '{"at": 3}',
            Status.COMPLETED,
        ),
        ({"at": {"enum": ["ant", "bee"]}}, '{"at": "ant"}', Status.COMPLETED),
        ({"at": {"$ref": "#/$defs/place"}}, '{"at": {"x": 1}}', Status.COMPLETED),
    ],
)
async def test_a_call_of_a_rows_own_tool_is_judged_and_one_that_breaks_its_schema_is_malformed(
    tmp_path: Path, properties: dict[str, Any], arguments: str, status: Status
):
    parameters = {"type": "object", "properties": properties, "required": ["at"]}
    tool = {"type": "function", "function": {"name": "look", "parameters": parameters}}
    row = {"prompt": [{"role": "user", "content": "Look!"}], "tools": [tool], "answer": "ant"}
    files = Files(sources={"files": [write(tmp_path / "a.jsonl", [row])]}, shares={"heldout": 0})
    (problem,) = every(files)
    model = chat_folder(tmp_path / "model", QWEN3, QWEN_TOKENS, "<|im_end|>")
    chat, tokenizer = Chat.load(model), Tokenizer.from_file(str(model / "tokenizer.json"))

    async def calls_look(transcript: Transcript) -> Verdict:
        called = [call for message in transcript.messages for call in message.tool_calls]
        return Verdict(float([c.arguments for c in called] == [json.loads(arguments)]))

    said = f'<tool_call>\n{{"name": "look", "arguments": {arguments}}}\n</tool_call><|im_end|>'
    ids = tokenizer.encode(said, add_special_tokens=False).ids

    async def generate(prompt_ids: TokenIds, sampling: Sampling) -> Generation:
        return generation_of(ids, [-1.0] * len(ids), [0] * len(ids), "stop")

    live = LiveDomain(
        name="d",
        curriculum=files,
        judge=Rubric([Term("calls", 1.0, True, calls_look)]),
        driver=Conversation(None),
        max_new_tokens=300,
        driver_timeout_s=None,
    )
    roller = Roller(generate=generate, chat=chat, context_length=4096, seed=0)
    (rollout,) = await roller.roll_group(
        live, problem, 1, temperature=1.0, group_id="g", seed_name="g"
    )
    assert rollout.status is status, rollout.transcript.reason
    assert rollout.samples[0].reward == float(status is Status.COMPLETED)
