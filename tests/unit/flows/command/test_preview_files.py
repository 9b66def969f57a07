"""Each kind of file through the command, a stage's stream and the index of prompts: all of them
read the same rows, and say the same of the bad ones."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curricula.prompt_files.prompt_curriculum import Files
from flows.command.main import main
from flows.command.models.preview import ReadAs, RowKind
from infra.errors import InputError, TrainingStopped
from tasks.message_files.render_rows import Renderer
from tasks.message_files.spec import MessageFiles
from tasks.message_files.stream import MixedStream
from tasks.model_folder.model_files import beside
from tests.parts.chat_parts import random_base

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("own_home")]
README = """---
configs:
- config_name: default
  data_files:
  - {split: train, path: data/train-*}
  - {split: test, path: data/test-*}
---
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_base(tmp_path_factory.mktemp("base"))


def chat(number: int) -> dict[str, Any]:
    asked = {"role": "user", "content": f'{number}+1,\n"ü"'}
    return {"messages": [asked, {"role": "assistant", "content": str(number + 1)}]}


def question(number: int) -> dict[str, Any]:
    return {"prompt": f'{number}+1,\n"ü"', "answer": str(number + 1)}


def as_lines(file: Path, rows: Sequence[Any]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def as_array(file: Path, rows: Sequence[Any]) -> None:
    file.write_text(json.dumps(rows, indent=2))


def as_packed(file: Path, rows: Sequence[Any]) -> None:
    file.write_bytes(gzip.compress(json.dumps(rows).encode()))


def as_table(file: Path, rows: Sequence[Any]) -> None:
    with file.open("w", newline="", encoding="utf-8-sig") as opened:
        writer = csv.DictWriter(opened, list(rows[0]))
        writer.writeheader()
        for row in rows:
            texts = {n: v if isinstance(v, str) else json.dumps(v) for n, v in row.items()}
            writer.writerow(texts)


def as_parquet(file: Path, rows: Sequence[Any]) -> None:
    pq.write_table(pa.Table.from_pylist(list(rows)), file)


def as_repository(folder: Path, rows: Sequence[Any]) -> None:
    (folder / "data").mkdir(parents=True)
    (folder / "README.md").write_text(README)
    as_parquet(folder / "data/train-00000-of-00001.parquet", rows)
    as_parquet(folder / "data/test-00000-of-00001.parquet", rows[:1])


def as_saved(folder: Path, rows: Sequence[Any]) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    made = datasets.Dataset.from_list(list(rows))
    datasets.DatasetDict({"train": made, "test": made.select([0])}).save_to_disk(folder)


KINDS: dict[str, Callable[[Path, Sequence[Any]], None]] = {
    "rows.jsonl": as_lines,
    "rows.json": as_array,
    "rows.json.gz": as_packed,
    "rows.csv": as_table,
    "rows.parquet": as_parquet,
    "repository": as_repository,
    "saved": as_saved,
}
every_kind = pytest.mark.parametrize("name", KINDS)


def preview(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    with pytest.raises(SystemExit):
        main(["preview", *arguments, "--json"])
    return json.loads(capsys.readouterr().out)


@every_kind
def test_conversations_of_each_kind_are_previewed_and_trained_on(
    name: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    rows = [chat(number) for number in range(5)]
    KINDS[name](tmp_path / name, rows)
    found = preview(capsys, str(tmp_path / name), "--model", str(model), "--rows", "9")
    assert (found["rows_read"], found["rows_bad"]) == (5, 0)
    shown = [each["tokens"] for each in found["shown"]]
    assert all("ü" in each["text"] for each in found["shown"])
    source = MessageFiles(files=[str(tmp_path / name)])
    stream = MixedStream([source], Renderer.of_model(model), 0, tmp_path / "scratch")
    taken = [list(stream.take().tokens) for _ in range(5)]
    assert sorted(taken) == sorted(shown)
    if name in ("repository", "saved"):
        assert found["choices"][0].endswith("the split train is read, and not test")


@every_kind
def test_prompts_of_each_kind_are_previewed_and_asked(
    name: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    rows = [question(number) for number in range(5)]
    KINDS[name](tmp_path / name, rows)
    arguments = (str(tmp_path / name), "--model", str(model), "--kind", "prompts")
    assert preview(capsys, *arguments)["rows_bad"] == 0
    made = Files(sources={"files": [str(tmp_path / name)]}, shares={"heldout": 0})
    problems = made.problems("rl", made.num_rows("rl"), 0)
    assert {p.messages[0].content: p.reference for p in problems} == {
        row["prompt"]: {"answer": row["answer"]} for row in rows
    }


def test_a_bad_reference_is_bad_in_preview_and_in_the_index(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    from datetime import date
    from decimal import Decimal

    rows: list[dict[str, Any]] = [{"prompt": "x"}]
    values = {"decimal": Decimal("1.5"), "date": date(2020, 1, 2), "bytes": b"x"}
    for name, value in values.items():
        as_parquet(tmp_path / f"{name}.parquet", [rows[0] | {"answer": value}])
        file = str(tmp_path / f"{name}.parquet")
        found = preview(capsys, file, "--model", str(model), "--kind", "prompts")
        made = Files(sources={"files": [file], "max_bad_share": 1}, shares={"heldout": 0})
        assert found["bad_rows"] == made.counts[0].named
        assert "is no JSON; write it as text" in found["bad_rows"][0]


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        (["1.0", "2.5"], "'1.0': an answer '1'"),
        (["x", ["-2.00", "-3.0"]], ""),
        ([["-2.00", "-3.0"], "1.0"], "'-2.00': an answer '-2'"),
        (["1.5", "2.25"], ""),
        ([1.0, 2.0], ""),
        (["1", "2"], ""),
    ],
)
def test_references_written_with_a_point_are_said(
    answers: list[Any], said: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "a.jsonl"
    as_lines(file, [question(number) | {"answer": a} for number, a in enumerate(answers)])
    found = preview(capsys, str(file), "--model", str(model), "--kind", "prompts")
    assert found["rows_bad"] == 0
    assert len(found["cautions"]) == bool(said)
    assert said in "".join(found["cautions"])


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("Half of 2.\n#### ", "answer: nothing follows #### in it"),
        ("Half of 2.\n####", "answer: nothing follows #### in it"),
        ({"value": 5}, "answer: is an object of value; the rewards read `answer` of it"),
    ],
)
def test_a_reference_without_an_answer_is_said_by_preview_and_by_the_index_in_the_same_words(
    answer: Any, said: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "a.jsonl"
    as_lines(file, [{"question": "q", "answer": answer}])
    found = preview(capsys, str(file), "--model", str(model), "--kind", "prompts")
    source = {"files": [str(file)], "max_bad_share": 1, "needs": ["answer"]}
    (named,) = Files(sources=source, shares={"heldout": 0}).counts[0].named
    assert said in named
    (shown,) = [*found["bad_rows"], *found["cautions"]]
    assert named.partition(": ")[2] in shown


def test_a_prompt_longer_than_the_context_is_bad(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "a.jsonl"
    as_lines(file, [question(1), {"question": "w " * 9000, "answer": "5"}])
    found = preview(capsys, str(file), "--model", str(model), "--kind", "prompts")
    assert found["bad"] == {"too_long": 1}
    assert "a.jsonl:2: has " in found["bad_rows"][0]


def test_a_solution_of_its_own_column_is_shown_beside_the_reference(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "a.jsonl"
    as_lines(file, [{"question": "How many?", "answer": "7", "worked": "Six and one are 7."}])
    arguments = (str(file), "--model", str(model), "--kind", "prompts")
    (row,) = preview(capsys, *arguments, "--columns", "solution=worked")["shown"]
    assert row["row"].endswith("reference {'answer': '7'} \u00b7 solution 'Six and one are 7.'")
    (row,) = preview(capsys, *arguments)["shown"]
    assert row["row"].endswith("reference {'answer': '7'}")


def test_prompts_are_shown_with_what_a_stage_would_put_around_them(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "a.jsonl"
    as_lines(file, [{"question": "How many?", "answer": "Six and one. #### 7"}])
    around = ("--instruction", "Answer briefly.", "--system", "Be kind.", "--pattern", "#### (.+)")
    arguments = (str(file), "--model", str(model))
    found = preview(capsys, *arguments, "--kind", "prompts", *around)
    (row,) = found["shown"]
    assert "How many?\n\nAnswer briefly." in row["text"]
    assert "Be kind." in row["text"]
    assert "{'answer': '7'}" in row["row"]
    for option, value in (around[:2], around[2:4], around[4:]):
        with pytest.raises(SystemExit):
            main(["preview", *arguments, option, value])
        assert f"{option} {value!r}: is for prompts" in capsys.readouterr().err


def test_rows_that_repeat_or_contradict_others_and_calls_of_no_tool_are_said(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    asked, told = tmp_path / "asked.jsonl", tmp_path / "told.jsonl"
    as_lines(asked, [question(1), question(1), question(1) | {"answer": 77}, question(2)])
    found = preview(capsys, str(asked), "--model", str(model), "--kind", "prompts")
    assert found["equal_rows"] == 2
    assert found["cautions"][0].startswith("1 rows contradict an earlier one")
    counts = Files(sources={"files": [str(asked)]}).counts[0]
    assert (counts.duplicates, counts.contradicting) == (2, 1)
    assert counts.contradictions == ["asked.jsonl:3 has {'answer': 77}"]
    assert "contradict the earlier one" in "".join(Files(sources={"files": [str(asked)]}).left_out)
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    calling = {"role": "assistant", "content": "", "tool_calls": [call]}
    rows = [{"messages": [*chat(3)["messages"][:1], calling]}, chat(1), chat(1), chat(2)]
    as_lines(told, rows)
    found = preview(capsys, str(told), "--model", str(model))
    assert (found["rows_bad"], found["equal_rows"]) == (0, 1)
    assert found["cautions"][0].startswith("1 rows call tools and offer none")


def test_no_file_is_said_in_one_line(model: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        main(["preview", "--model", str(model)])
    assert ended.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_file_of_a_hub_cache_keeps_the_name_of_its_link(tmp_path: Path):
    (tmp_path / "blobs").mkdir()
    as_lines(tmp_path / "blobs/abc", [chat(1)])
    (tmp_path / "train.jsonl").symlink_to(tmp_path / "blobs/abc")
    assert beside("train.jsonl", tmp_path) == str(tmp_path / "train.jsonl")
    assert beside("../x/*.csv", tmp_path / "recipes") == str(tmp_path / "x/*.csv")


def test_a_weight_of_csv_is_a_number(model: Path, tmp_path: Path):
    as_table(tmp_path / "a.csv", [chat(1) | {"w": 0.5}])
    source = MessageFiles.model_validate(
        {"files": [str(tmp_path / "a.csv")], "columns": {"weight": "w"}}
    )
    stream = MixedStream([source], Renderer.of_model(model), 0, tmp_path / "scratch")
    assert stream.take().weight == 0.5


def test_all_bad_rows_are_listed_as_json_and_counted_by_a_curriculum(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    rows = [question(n) if n % 3 else {"question": "", "answer": "1"} for n in range(40)]
    as_lines(tmp_path / "a.jsonl", rows)
    arguments = (str(tmp_path / "a.jsonl"), "--model", str(model), "--kind", "prompts")
    found = preview(capsys, *arguments)
    assert [line.split(": ")[0] for line in found["bad_rows"]] == [
        f"a.jsonl:{n + 1}" for n in range(0, 40, 3)
    ]
    with pytest.raises(SystemExit):
        main(["preview", *arguments])
    printed = capsys.readouterr().out
    assert "  and 9 more: --json lists all" in printed
    named = ", ".join(f"a.jsonl:{n + 1}" for n in range(0, 15, 3))
    assert f"  {named}: " in printed, "one fault of five rows is said once"
    with pytest.raises(TrainingStopped, match=r"^14 of the 40 rows"):
        Files(sources={"files": [str(tmp_path / "a.jsonl")]}).num_rows("rl")
    with pytest.raises(SystemExit) as ended:
        main(["rl", *arguments[1:3], "--data", arguments[0], "--reward", "exact", "--print"])
    assert ended.value.code == 2, "nothing was started"


EMPTY: dict[str, Callable[[Path], object]] = {
    "empty.jsonl": lambda file: file.write_text(""),
    "blank.jsonl": lambda file: file.write_text("\n \n\n"),
    "blank.json": lambda file: file.write_text(" \n"),
    "array.json": lambda file: file.write_text("[]"),
    "names.csv": lambda file: file.write_text("prompt,answer\n"),
    "rows.parquet": lambda file: pq.write_table(pa.table({"prompt": pa.array([], "string")}), file),
    "nothing.parquet": lambda file: pq.write_table(pa.table({}), file),
}


@pytest.mark.parametrize("name", EMPTY)
def test_a_file_without_a_row_is_named(
    name: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    EMPTY[name](tmp_path / name)
    as_lines(tmp_path / "rows.jsonl", [question(1)])
    arguments = ["--model", str(model), "--kind", "prompts"]
    with pytest.raises(SystemExit) as ended:
        main(["preview", str(tmp_path / name), *arguments])
    assert ended.value.code == 2
    assert f"no row in {name}" in " ".join(capsys.readouterr().err.split())
    beside = preview(capsys, str(tmp_path / name), str(tmp_path / "rows.jsonl"), *arguments)
    assert (beside["rows_read"], beside["cautions"][0]) == (1, f"without a row: {name}")


@pytest.mark.parametrize("kind", ["messages", "prompts", "pairs"])
def test_roles_are_for_documents_alone(kind: RowKind, model: Path) -> None:
    renderer = Renderer.of_model(model)
    with pytest.raises(InputError, match="--roles: is for mid-training; write --kind documents"):
        ReadAs(kind, "auto", [], {}, roles=["user"]).reader(renderer)


def test_another_template_renders_the_rows(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """The file's text is in place of the model's own, as in `base.template`."""
    file = tmp_path / "a.jsonl"
    as_lines(file, [chat(1)])
    other = tmp_path / "other.jinja"
    own = (model / "chat_template.jinja").read_text()
    other.write_text(own.replace("<|{{ message.role }}|>", "<|{{ message.role }}|>Said: "))
    arguments = (str(file), "--model", str(model))
    (plain,) = preview(capsys, *arguments)["shown"]
    (given,) = preview(capsys, *arguments, "--template", str(other))["shown"]
    assert "Said: " not in plain["text"]
    assert given["text"].replace("Said: ", "") == plain["text"]
    assert "Said: " in given["text"]
    with pytest.raises(SystemExit):
        main(["preview", *arguments, "--template", "nowhere"])
    assert "--template: nowhere cannot be read" in capsys.readouterr().err
