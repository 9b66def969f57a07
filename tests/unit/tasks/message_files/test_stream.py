"""Files as a stream of sequences: every row once an epoch, the same after a resume, bad rows named,
no more in memory than a window."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from curricula.prompt_files.contamination import HeldOutWords
from curricula.prompt_files.spec import PromptFiles
from curricula.rows.conversation import Columns
from curricula.rows.layouts import read_row
from engines.chat import Chat
from infra.config import Config
from infra.data_files import chunks
from infra.data_files.files import find_files, fingerprint
from infra.errors import InputError, TrainingStopped
from tasks.message_files import stream
from tasks.message_files.render_rows import Renderer
from tasks.message_files.spec import MessageFiles
from tasks.message_files.stream import MixedStream
from tasks.sft.spec import SftSettings
from tasks.sft.supply import FileSupply
from tests.parts.chat_parts import LLAMA, LLAMA_TOKENS, QWEN3, QWEN_TOKENS, chat_folder

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    folder = chat_folder(tmp_path_factory.mktemp("llama"), LLAMA, LLAMA_TOKENS, "<|eot|>")
    return Renderer(Chat.load(folder), 512)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many chunks and windows of a few rows."""
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 400)
    monkeypatch.setattr(stream, "WINDOW_BYTES", 1600)


def row(number: int) -> dict[str, Any]:
    question = {"role": "user", "content": f"question {number}"}
    return {"messages": [question, {"role": "assistant", "content": f"a{number}"}]}


def write_jsonl(file: Path, rows: Sequence[Any]) -> str:
    lines = [each if isinstance(each, str) else json.dumps(each) for each in rows]
    file.write_text("\n".join(lines) + "\n")
    return str(file)


def mixed(renderer: Renderer, scratch: Path, *sources: MessageFiles, seed: int = 0) -> MixedStream:
    return MixedStream(sources, renderer, seed, scratch)


def answers(found: MixedStream, renderer: Renderer, count: int) -> list[str]:
    said: list[str] = []
    for _ in range(count):
        taken = found.take()
        tokens = [t for t, m in zip(taken.tokens, taken.loss_mask, strict=True) if m]
        said.append(renderer.chat.decode(tokens).removesuffix("<|eot|>"))
    return said


@pytest.mark.usefixtures("small")
def test_every_epoch_has_every_row_once_in_an_order_of_its_own(renderer: Renderer, tmp_path: Path):
    source = MessageFiles(files=[write_jsonl(tmp_path / "a.jsonl", list(map(row, range(60))))])
    said = answers(mixed(renderer, tmp_path, source), renderer, 120)
    every = Counter(f"a{number}" for number in range(60))
    assert Counter(said[:60]) == Counter(said[60:]) == every
    assert said[:60] != said[60:]
    other = answers(mixed(renderer, tmp_path, source, seed=1), renderer, 60)
    assert Counter(other) == every
    assert other != said[:60]
    neighbours = sum(abs(int(a[1:]) - int(b[1:])) == 1 for a, b in pairwise(said[:60]))
    assert neighbours < 12, "rows that stand side by side in the file are kept apart"


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("cut", [0, 1, 17, 59, 60, 61, 100])
def test_a_stream_continues_as_if_it_had_not_been_cut(renderer: Renderer, tmp_path: Path, cut: int):
    rows = [*map(row, range(40)), "{", *map(row, range(40, 60))]
    one = MessageFiles(files=[write_jsonl(tmp_path / "a.jsonl", rows)], max_bad_share=0.1)
    two = MessageFiles(files=[write_jsonl(tmp_path / "b.jsonl", rows[:9])], weight=0.3)
    whole = mixed(renderer, tmp_path, one, two)
    said = answers(whole, renderer, 130)
    before = mixed(renderer, tmp_path, one, two)
    answers(before, renderer, cut)
    position = json.loads(json.dumps(before.position))
    answers(before, renderer, 5)
    after = mixed(renderer, tmp_path, one, two)
    after.continue_from(position)
    assert answers(after, renderer, 130 - cut) == said[cut:]
    assert after.position == whole.position
    assert whole.streams[0].counts.num_bad == 1, "a row counts once, whatever the epoch"


def test_bad_rows_are_named_by_file_and_line_and_counted(renderer: Renderer, tmp_path: Path):
    rows: list[Any] = list(map(row, range(95)))
    rows[3], rows[7] = "{broken", ""
    rows[40] = {"text": "x"}
    rows[50] = row(5)
    rows[50]["messages"][0]["content"] = "x" * 600
    source = MessageFiles(
        files=[write_jsonl(tmp_path / "a.jsonl", rows)], format="openai", max_bad_share=0.04
    )
    found = mixed(renderer, tmp_path, source)
    answers(found, renderer, 91)
    counts = found.streams[0].counts
    assert (found.streams[0].num_rows, counts.read) == (94, 94), "an empty line is no row"
    assert counts.bad == {"not_json": 1, "columns": 1, "too_long": 1}
    named = {line.split(": ")[0] for line in counts.named}
    assert named == {"a.jsonl:4", "a.jsonl:41", "a.jsonl:51"}

    strict = source.model_copy(update={"max_bad_share": 0.03})
    with pytest.raises(TrainingStopped, match=r"3 of the first \d+ rows.*max_bad_share 0.03"):
        answers(mixed(renderer, tmp_path, strict), renderer, 91)


def test_files_without_a_good_row_are_refused(renderer: Renderer, tmp_path: Path):
    bad = MessageFiles(files=[write_jsonl(tmp_path / "a.jsonl", ["{"])], max_bad_share=1)
    with pytest.raises(InputError, match=r"no row of .*a\.jsonl can be trained on: a\.jsonl:1: is"):
        mixed(renderer, tmp_path, bad).take()
    empty = MessageFiles(files=[write_jsonl(tmp_path / "b.jsonl", [""])])
    with pytest.raises(InputError, match=r"data\.0\.files: .*no row in"):
        mixed(renderer, tmp_path, empty)


def test_parquet_and_compressed_files_give_the_rows_of_jsonl(renderer: Renderer, tmp_path: Path):
    rows = list(map(row, range(30)))
    rows[4]["messages"][1]["weight"] = 1  # null in all other rows of Parquet
    plain = write_jsonl(tmp_path / "a.jsonl", rows)
    with gzip.open(tmp_path / "b.jsonl.gz", "wb") as packed:
        packed.write(Path(plain).read_bytes())
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "c.parquet", row_group_size=7)
    far = fsspec.filesystem("memory")
    far.pipe_file("/chats/d.jsonl.gz", (tmp_path / "b.jsonl.gz").read_bytes())
    far.pipe_file("/chats/e.parquet", (tmp_path / "c.parquet").read_bytes())
    places = [plain, str(tmp_path / "b.jsonl.gz"), f"file://{tmp_path}/c.parquet"]
    places += ["memory://chats/*.gz", "memory://chats/e.parquet"]
    said = [
        Counter(answers(mixed(renderer, tmp_path / "s", MessageFiles(files=[file])), renderer, 30))
        for file in places
    ]
    assert said == [said[0]] * 5
    assert [f.name for f in find_files([plain, "memory://chats/*"])][1:] == [
        "chats/d.jsonl.gz",
        "chats/e.parquet",
    ]


def test_sources_are_mixed_by_their_weights(renderer: Renderer, tmp_path: Path):
    one = MessageFiles(files=[write_jsonl(tmp_path / "a.jsonl", [row(1)])], weight=3)
    two = MessageFiles(files=[write_jsonl(tmp_path / "b.jsonl", [row(2)])])
    said = answers(mixed(renderer, tmp_path, one, two), renderer, 40)
    assert Counter(said) == {"a1": 30, "a2": 10}
    assert Counter(said[:8]) == {"a1": 6, "a2": 2}


@pytest.mark.usefixtures("small")
def test_a_share_of_the_rows_with_thoughts_comes_again_without_them(tmp_path: Path):
    folder = chat_folder(tmp_path / "model", QWEN3, QWEN_TOKENS, "<|im_end|>")
    renderer = Renderer(Chat.load(folder), 512)
    rows: list[Any] = list(map(row, range(300)))
    bare = [renderer.render(read_row(rows[n], Columns(), "auto")).tokens for n in range(0, 300, 3)]
    for n in range(0, 300, 3):
        rows[n]["messages"][1]["reasoning_content"] = f"t{n}"
    rows[1], rows[2] = "{", {"text": "x"}
    source = MessageFiles(files=[write_jsonl(tmp_path / "a.jsonl", rows)], max_bad_share=1)

    def stream_of(share: float) -> MixedStream:
        return MixedStream([source], renderer, 0, tmp_path, nothink_share=share)

    def texts(found: MixedStream, count: int) -> list[str]:
        return [renderer.chat.decode(found.take().tokens) for _ in range(count)]

    plain = Counter(texts(stream_of(0), 298))
    assert Counter(texts(stream_of(1), 398)) - plain == Counter(map(renderer.chat.decode, bare))
    half = stream_of(0.5)
    texts(half, 398)
    counts = half.streams[0].counts
    assert (counts.read, counts.num_bad) == (300, 2), "a row counts once"
    again = counts.without_thinking
    assert 35 < again < 65
    half, epoch = stream_of(0.5), 298 + again
    first = texts(half, epoch)
    position = json.loads(json.dumps(half.position))
    second = texts(half, epoch)
    assert Counter(first) == Counter(second), "the same ones in every epoch"
    assert first != second
    resumed = stream_of(0.5)
    resumed.continue_from(position)
    assert texts(resumed, epoch) == second


def test_a_rows_weight_goes_with_its_tokens(renderer: Renderer, tmp_path: Path):
    rows = [row(1) | {"w": 0.5}, row(2) | {"w": 0}]
    source = MessageFiles.model_validate(
        {
            "files": [write_jsonl(tmp_path / "a.jsonl", rows)],
            "columns": {"weight": "w"},
            "max_bad_share": 0.5,
        }
    )
    found = mixed(renderer, tmp_path, source)
    assert {found.take().weight for _ in range(4)} == {0.5}
    assert found.streams[0].counts.bad == {"nothing_trained": 1}


def test_a_fingerprint_follows_the_content_and_not_the_place(tmp_path: Path):
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
        write_jsonl(tmp_path / folder / "a.jsonl", [row(1)])
        write_jsonl(tmp_path / folder / "b.jsonl", [row(2)])
    here, there = (fingerprint([f"{tmp_path}/{at}/*.jsonl"]) for at in ("here", "there"))
    assert here == there
    swapped = fingerprint([str(tmp_path / "here/b.jsonl"), str(tmp_path / "here/a.jsonl")])
    assert swapped != here, "the order of the rows follows from that of the files"
    write_jsonl(tmp_path / "there/b.jsonl", [row(3)])
    assert fingerprint([f"{tmp_path}/there/*.jsonl"]) != here


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("none.jsonl", "no file matches"),
        ("", r"is a folder without a file that is read\. Read are .jsonl, .*\.csv"),
        ("a.txt", r"is of no kind that is read\. Read are .jsonl, .*\.csv"),
    ],
)
def test_what_names_no_file_is_refused(tmp_path: Path, pattern: str, text: str):
    (tmp_path / "a.txt").write_text("[]")
    with pytest.raises(InputError, match=text):
        find_files([str(tmp_path / pattern)])


def test_a_broken_parquet_file_is_named(renderer: Renderer, tmp_path: Path):
    (tmp_path / "a.parquet").write_text("no")
    with pytest.raises(InputError, match=r"a\.parquet is text; name it"):
        mixed(renderer, tmp_path, MessageFiles(files=[str(tmp_path / "a.parquet")]))


def test_rows_that_share_words_with_what_is_held_out_are_left_out_and_not_bad(
    renderer: Renderer, tmp_path: Path
):
    rows = list(map(row, range(20)))
    rows[4]["messages"][0]["content"] = "Again: QUESTION ten of twelve, please"
    held_out = HeldOutWords(4)
    held_out.add("test/10", "question ten of twelve")
    source = MessageFiles(files=[write_jsonl(tmp_path / "a.jsonl", rows)], max_bad_share=0)
    found = MixedStream([source], renderer, 0, tmp_path, held_out)
    assert "a4" not in answers(found, renderer, 19)
    found.take()
    counts = found.streams[0].counts
    assert (counts.read, counts.num_bad, counts.num_contaminated) == (20, 0, 1)
    assert counts.named == [
        "a.jsonl:5: shares 'question ten of twelve' with test/10, which is held out"
    ]


def test_every_row_left_out_is_told_of_once_whichever_source_it_is_of(
    renderer: Renderer, tmp_path: Path
):
    sources = [
        MessageFiles(
            files=[write_jsonl(tmp_path / f"{name}.jsonl", [*map(row, range(12)), *["{"] * 4])],
            max_bad_share=1.0,
        )
        for name in "ab"
    ]
    found = mixed(renderer, tmp_path, *sources)
    supply = FileSupply(1, found)
    said: list[str] = []
    for step in range(30):
        supply.batches(step, step + 1)
        said += supply.warnings()
    named = [line for each in found.streams for line in each.counts.named]
    assert len(named) == 8
    assert sorted(said) == sorted(f"left out: {line}" for line in named)


@pytest.mark.parametrize("of", [SftSettings, PromptFiles])
def test_a_source_that_would_never_be_drawn_beside_another_is_refused(of: type[Config]) -> None:
    def mixed(weight: float) -> Config:
        sources = [{"files": ["a"], "weight": weight}, {"files": ["b"]}]
        if of is SftSettings:
            return of.model_validate({"steps": 1, "optimizer": {"lr": 1}, "data": sources})
        return of.model_validate({"sources": [sources[0] | {"name": "a"}, sources[1]]})

    assert mixed(1e6)
    for weight in (1e30, 1e-9):
        with pytest.raises(ValidationError, match=r"the weights .* differ by more than 1e\+06 tim"):
            mixed(weight)


def test_a_source_of_which_nothing_was_trained_on_is_said(
    renderer: Renderer, tmp_path: Path
) -> None:
    often = write_jsonl(tmp_path / "often.jsonl", [row(number) for number in range(9)])
    never = write_jsonl(tmp_path / "never.jsonl", [row(9)])
    sources = [MessageFiles(files=[often]), MessageFiles(files=[never], weight=0.01)]
    supply = FileSupply(4, mixed(renderer, tmp_path, *sources))
    supply.batches(1, 3)
    (warning,) = supply.conclusions()
    assert str(warning).startswith(
        "nothing of data.1 (never.jsonl) was trained on: its turn never came. Raise its `weight`"
    )
    supply.batches(3, 40)
    assert not list(supply.conclusions())
