"""How fast one core turns JSONL of messages into packed batches, and in how much memory.

The rows are made up: a question and an answer of words as frequent as in natural text, about 600
bytes a row. The tokenizer is byte-level BPE of 16,000 tokens trained on some of them, the template
Qwen3's. It runs in a process of its own, whose peak memory is that of reading alone.

`python -m tests.programs.bench.message_files 1024` writes that many MiB and reads every row, which
takes minutes.
"""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

from engines.batching import plan_micro_batches
from engines.chat import Chat
from tasks.message_files.render_rows import Renderer
from tasks.message_files.spec import MessageFiles
from tasks.message_files.stream import MixedStream
from tests.parts.chat_parts import QWEN3, QWEN_TOKENS, TAGS, chat_folder
from tests.programs.bench.rows import Row

MIB = 200
ROWS_A_WINDOW = 6000
"""that are taken of each window: every window is in memory once"""
BATCH, MAX_TOKENS = 64, 8192
VOCABULARY, WORDS, LEARNED = 16_000, 30_000, 2000


def measure(mib: int = MIB, *, every_row: bool = False) -> list[Row]:
    """`every_row`: the whole file is read, not a part of each window."""
    with tempfile.TemporaryDirectory(prefix="tr-bench-") as folder:
        size = _write(Path(folder), mib << 20)
        command = [sys.executable, "-c", f"from {__spec__.name} import read_here; read_here()"]
        done = subprocess.run(
            [*command, folder, "every_row" if every_row else "some"],
            capture_output=True, text=True, check=True, timeout=600 + 3 * mib,
        )  # fmt: skip
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    note = (
        f"{size >> 20} MiB of JSONL, {found['rows']:.0f} rows read, {found['bytes']:.0f} bytes and"
        f" {found['tokens']:.0f} tokens a row; {found['index']:.2f} CPU s to find the lines;"
        f" tokenising is {found['tokenising']:.0%} of the time"
    )
    return [
        Row("JSONL to packed batches, one core", found["rate"], "rows/CPU s", 4000, note=note),
        Row(
            "peak memory of the process that does it",
            found["peak"],
            "GiB",
            floor=1.0,
            at_most=True,
            note=f"{found['windows']:.0f} windows of 64 MiB, one after the other",
        ),
    ]


def _write(folder: Path, at_least: int) -> int:
    from tokenizers import AddedToken, Tokenizer, trainers

    chat_folder(folder / "chat", QWEN3, QWEN_TOKENS, "<|im_end|>")
    file = folder / "chat/tokenizer.json"
    tokenizer = Tokenizer.from_file(str(file))
    special = [AddedToken(token, special=True, normalized=False) for token in QWEN_TOKENS]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=special,
        initial_alphabet=sorted(tokenizer.get_vocab()),
        show_progress=False,
    )
    texts = [m["content"] for row in islice(_rows(1), LEARNED) for m in row["messages"]]
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    tokenizer.save(str(file))
    size = 0
    with (folder / "rows.jsonl").open("w") as out:
        for row in _rows(0):
            size += out.write(json.dumps(row) + "\n")
            if size >= at_least:
                return size
    return size


def _rows(seed: int) -> Iterator[dict[str, list[dict[str, str]]]]:
    made = random.Random(seed)
    letters = random.Random(7)
    words = [
        "".join(letters.choices("etaoinshrdlucmfwygpbvk", k=min(12, 2 + int(n**0.2))))
        for n in range(1, WORDS + 1)
    ]
    weights = list(accumulate(1 / n for n in range(1, WORDS + 1)))
    while True:
        text = made.choices(words, cum_weights=weights, k=100)
        cut = made.randrange(15, 40)
        yield {
            "messages": [
                {"role": "user", "content": " ".join(text[:cut])},
                {"role": "assistant", "content": " ".join(text[cut:])},
            ]
        }


class _Timed:
    """A tokenizer that says how much CPU time it took to give ids."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool) -> list[Any]:
        began = time.process_time()
        made = self._tokenizer.encode_batch(texts, add_special_tokens=add_special_tokens)
        self.seconds += time.process_time() - began
        return made


def read_here() -> None:
    """What the process of its own does: reads the folder of its first argument, prints figures."""
    print(json.dumps(_read(Path(sys.argv[1]), every_row=sys.argv[2] == "every_row")))


def _read(folder: Path, *, every_row: bool) -> dict[str, float]:
    """Figures of reading, in this process."""
    chat = Chat.load(folder / "chat")
    tokenizer = _Timed(chat._tokenizer)
    chat._tokenizer = tokenizer  # pyrefly: ignore[bad-assignment]
    size = (folder / "rows.jsonl").stat().st_size
    began = time.process_time()
    source = MessageFiles(files=[str(folder / "rows.jsonl")])
    stream = MixedStream([source], Renderer(chat, MAX_TOKENS), 0, folder)
    index = time.process_time() - began
    num_rows = stream.streams[0].num_rows
    windows = -(-size // (64 << 20))
    began, rows, tokens = time.process_time(), 0, 0
    for _ in _turns(stream, num_rows, windows, every_row):
        batch = [stream.take() for _ in range(BATCH)]
        lengths = [len(sequence.tokens) for sequence in batch]
        plan_micro_batches(lengths, MAX_TOKENS, 1, list(map(float, lengths)))
        rows, tokens = rows + BATCH, tokens + sum(lengths)
    seconds = time.process_time() - began
    return {
        "rate": rows / seconds,
        "rows": rows,
        "tokens": tokens / rows,
        "bytes": size / num_rows,
        "tokenising": tokenizer.seconds / seconds,
        "index": index,
        "windows": windows,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20),
    }


def _turns(stream: MixedStream, num_rows: int, windows: int, every_row: bool) -> Iterator[int]:
    """A number a batch that is to be taken; `stream` stands before it."""
    if every_row:
        yield from range(num_rows // BATCH)
        return
    for window in range(windows):
        position = stream.position
        position["streams"][0] |= {"window": window, "row": 0}
        stream.continue_from(position)
        yield from range(ROWS_A_WINDOW // BATCH)


if __name__ == "__main__":
    for row in measure(int(sys.argv[1]), every_row=True):
        print(row)
