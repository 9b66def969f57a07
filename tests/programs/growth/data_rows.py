"""Users' own data: prompts, messages, admitted problems."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from curricula.prompt_files.contamination import HeldOutWords
from curricula.prompt_files.prompt_curriculum import Files
from engines.batching import TokenSequence
from engines.rollout.records.dataset import AdmittedProblem, write_admitted
from engines.types import Message, Problem
from tasks.admitted import restricted
from tasks.message_files.spec import MessageFiles
from tasks.message_files.stream import MessageStream
from tests.parts.rollout_parts import Counting
from tests.programs.growth.made_up import new_folder, texts
from tests.programs.growth.meter import Figure, Meter
from tests.programs.growth.registry import HISTORY, WORK, grows

DRAWN = 64


def _prompts(size: int, folder: Path) -> Files:
    file = folder / "prompts.jsonl"
    if not file.exists():
        with file.open("w") as out:
            for n, text in enumerate(texts(size, 30)):
                out.write(json.dumps({"prompt": text, "answer": str(n)}) + "\n")
    return Files(sources={"files": [str(file)]}, decontaminate=0, shares={"heldout": 0.1})


@grows("prompt files, looked through", "rows", (5000, 20_000, 80_000), cpu_s=WORK, memory=WORK)
def prompts_read(size: int, meter: Meter) -> None:
    prompts = _prompts(size, meter.folder)
    with meter.counting():
        prompts.problems("rl", DRAWN, 1)


@grows("the next prompts", "rows", (5000, 20_000, 80_000), cpu_s=HISTORY)
def prompts_drawn(size: int, meter: Meter) -> None:
    _prompts(size, meter.folder).problems("rl", DRAWN, 1)
    prompts = _prompts(size, meter.folder)
    prompts.problems("rl", DRAWN, 1)
    with meter.counting():
        for place in range(1, 11):
            prompts.problems("rl", DRAWN, 1, place * DRAWN)


@grows("prompts at an epoch's edge", "rows", (5000, 20_000, 80_000), cpu_s=HISTORY)
def prompts_at_the_edge(size: int, meter: Meter) -> None:
    """Rollouts of both epochs are under way there, and are drawn by turns."""
    prompts = _prompts(size, meter.folder)
    prompts.problems("rl", 1, 1)
    rows = prompts.num_rows("rl")
    prompts.problems("rl", 2, 1, rows - 1)
    with meter.counting():
        for _ in range(10):
            prompts.problems("rl", 1, 1, rows)
            prompts.problems("rl", 1, 1, rows - 1)


@grows("held-out words", "held-out rows", (1000, 4000, 16_000), cpu_s=WORK, memory=WORK)
def held_out_words(size: int, meter: Meter) -> None:
    prompts = list(texts(size, 60))
    with meter.counting():
        words = HeldOutWords(8)
        for number, text in enumerate(prompts):
            words.add(str(number), text)


@grows("admitted problems, read", "problems", (4000, 16_000, 64_000), cpu_s=WORK, memory=WORK)
def admitted_read(size: int, meter: Meter) -> None:
    meter.apart(lambda: _admitted(size, meter.folder))
    with meter.counting():
        restricted(Counting("d"), meter.folder, "d")


@grows("admitted problems, drawn", "problems", (4000, 16_000, 64_000), cpu_s=HISTORY)
def admitted_drawn(size: int, meter: Meter) -> None:
    meter.apart(lambda: _admitted(size, meter.folder))
    admitted = restricted(Counting("d"), meter.folder, "d")
    admitted.problems("rl", DRAWN, 1)
    with meter.counting():
        for place in range(100):
            admitted.problems("rl", DRAWN, 1, place * DRAWN % size)


def _admitted(size: int, folder: Path) -> None:
    problems = (
        Problem(f"d/{n}", "d", (Message("user", text),), {"answer": str(n)})
        for n, text in enumerate(texts(size, 30))
    )
    write_admitted(folder, [AdmittedProblem("d", "rl", problem) for problem in problems])


class _NoRenderer:
    """Gives each conversation the same tokens: what is measured is the files."""

    def render_all(self, conversations: Sequence[object]) -> list[TokenSequence]:
        return [TokenSequence([1, 2, 3], [0, 1, 1]) for _ in conversations]


def _rows(size: int) -> Iterator[dict[str, list[dict[str, str]]]]:
    for text in texts(size, 100):
        yield {
            "messages": [
                {"role": "user", "content": text[:100]},
                {"role": "assistant", "content": text},
            ]
        }


def _messages(size: int, file: Path) -> None:
    with file.open("w") as out:
        for row in _rows(size):
            out.write(json.dumps(row) + "\n")


def _stream(file: Path, scratch: Path) -> MessageStream:
    return MessageStream(MessageFiles(files=[str(file)]), _NoRenderer(), "1/0", scratch)


@grows("JSONL of messages, opened", "rows", (10_000, 40_000, 160_000), cpu_s=WORK, memory=HISTORY)
def messages_opened(size: int, meter: Meter) -> None:
    file = meter.folder / "rows.jsonl"
    meter.apart(lambda: _messages(size, file))
    with meter.counting():
        _stream(file, meter.folder / "scratch")


@grows("JSONL of messages, opened again", "rows", (10_000, 40_000, 160_000), cpu_s=HISTORY,
       memory=HISTORY)  # fmt: skip
def messages_opened_again(size: int, meter: Meter) -> None:
    """What the next attempt at a stage does, in a process of its own."""
    file = meter.folder / "rows.jsonl"
    meter.apart(lambda: _messages(size, file))
    os.utime(file, (0, 0))
    meter.apart(lambda: _stream(file, meter.folder / "scratch"))
    with meter.counting():
        _stream(file, meter.folder / "scratch")


@grows("JSONL of messages, gone on with", "rows before", (40_000, 160_000, 320_000),
       bytes=HISTORY, memory=HISTORY)  # fmt: skip
def messages_continued(size: int, meter: Meter) -> None:
    """Memory and the position in a checkpoint; the files are opened anew, see the row above."""
    file = meter.folder / "rows.jsonl"
    meter.apart(lambda: _messages(size, file))
    left = meter.folder / "position.json"

    def attempt_before() -> None:
        stream = _stream(file, meter.folder / "scratch")
        for _ in range(size // 2):
            stream.take()
        left.write_text(json.dumps(stream.position))

    meter.apart(attempt_before)
    position = json.loads(left.read_text())
    with meter.counting():
        again = _stream(file, meter.folder / "scratch")
        again.continue_from(position)
        again.take()
    meter.count(Figure.BYTES, len(json.dumps(position)))


@grows("compressed messages, a further attempt", "rows", (10_000, 40_000, 160_000), bytes=HISTORY)
def messages_again(size: int, meter: Meter) -> None:
    """Bytes: what the second attempt writes again."""
    file = meter.folder / "rows.jsonl"
    meter.apart(lambda: _messages(size, file))
    packed = file.with_name("rows.jsonl.gz")
    packed.write_bytes(gzip.compress(file.read_bytes(), 1))
    copies = new_folder(meter.folder / "copies")
    _stream(packed, copies).take()
    written = {copy: copy.stat().st_ino for copy in copies.iterdir()}
    with meter.counting():
        _stream(packed, copies).take()
    again = (c for c in copies.iterdir() if written.get(c) != c.stat().st_ino)
    meter.count(Figure.BYTES, sum(copy.stat().st_size for copy in again))


@grows("Parquet of small row groups", "row groups", (50, 200, 800), cpu_s=WORK)
def row_groups(size: int, meter: Meter) -> None:
    file = meter.folder / "rows.parquet"
    rows = size * 10

    def write() -> None:
        pq.write_table(pa.Table.from_pylist(list(_rows(rows))), file, row_group_size=10)

    meter.apart(write)
    with meter.counting():
        stream = _stream(file, meter.folder / "scratch")
        for _ in range(rows):
            stream.take()
