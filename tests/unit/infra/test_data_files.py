"""Rows of the kinds of files that a user may have."""

from __future__ import annotations

import gzip
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.local import LocalFileSystem

import infra.data_files.chunks as chunks_module
import infra.data_files.files as files_module
import infra.home as home_module
from infra.data_files.chunks import CsvFile, LocalFiles, first_rows
from infra.data_files.files import choices_of, find_files, fingerprint, local_copy
from infra.data_files.json_rows import JsonFile
from infra.data_files.rows import BadRow, Rows
from infra.errors import InputError, StorageError
from infra.home import home

pytestmark = pytest.mark.unit


def rows_of(files: LocalFiles) -> list[tuple[str, int, Mapping[str, Any]]]:
    return [
        (files.names[chunk.file], rows.line(index), rows.row(index))
        for chunk in files.chunks
        for rows in [files.read(chunk)]
        for index in range(len(rows))
    ]


def test_a_file_is_read_once_for_its_fingerprint_until_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    file, reads = tmp_path / "a.jsonl", list[str]()
    file.write_text('{"a": 1}\n')
    read = LocalFileSystem.cat_file

    def counted(self: LocalFileSystem, path: str, **part: Any) -> Any:
        reads.append(path)
        return read(self, path, **part)

    monkeypatch.setattr(LocalFileSystem, "cat_file", counted)
    first = fingerprint([str(file)])
    assert fingerprint([str(file)]) == first
    assert len(reads) == 2, "it may change within the tick of a clock"
    os.utime(file, (0, 0))
    assert [fingerprint([str(file)]) for _ in range(3)] == [first] * 3
    assert len(reads) == 3
    file.write_text('{"a": 2}\n')
    os.utime(file, (0, 0))
    assert fingerprint([str(file)]) != first

    file.write_text('{"a": 3}\n' * 200_000)  # what takes long to read is known to later processes
    os.utime(file, (0, 0))
    first = fingerprint([str(file)])
    reads.clear()
    files_module._known.clear()
    assert fingerprint([str(file)]) == first
    assert not reads


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.jsonl.gz", "array.json"])
def test_rows_of_an_unchanged_file_are_not_looked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    """Another process, with other copies of what is compressed, knows where they are."""
    looked = list[str]()
    for reader in (JsonFile, CsvFile):
        chunks = reader.chunks

        def counted(self: Any, number: int, size: int, find: Any = chunks) -> Any:
            looked.append(name)
            yield from find(self, number, size)

        monkeypatch.setattr(reader, "chunks", counted)

    def opened(scratch: str) -> list[Any]:
        return rows_of(LocalFiles(find_files([str(file)]), tmp_path / scratch))

    def write(word: str) -> None:
        values = [{"a": f"{n} {word}", "b": "x" * 9000} for n in range(300)]
        lines = [json.dumps(value) for value in values]
        text = "\n".join(lines) if "jsonl" in name else f"[{', '.join(lines)}]"
        if name == "a.csv":
            text = "\n".join(["a,b", *(f"{v['a']},{v['b']}" for v in values)])
        file.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
        os.utime(file, (0, 0))

    file = tmp_path / name
    write("one")
    first = opened("copies")
    assert len(LocalFiles(find_files([str(file)]), tmp_path / "copies").chunks) > 1
    assert opened("other copies") == first
    assert len(looked) == 1
    write("two")  # of the same size, and as old
    changed = opened("copies")
    assert [row["a"] for _, _, row in changed] == [f"{n} two" for n in range(300)]
    assert len(looked) == 2
    for kept in (home() / "cache" / "files-read").iterdir():
        kept.write_bytes(kept.read_bytes().replace(b"AAAA", b"AAAB", 1))
    assert opened("copies") == changed, "a flipped bit has the file read again"
    assert len(looked) == 3
    monkeypatch.setattr(chunks_module, "_code_of", lambda kind: "of a later version")
    assert opened("copies") == changed
    assert len(looked) == 4


@pytest.mark.filterwarnings("ignore")
def test_a_folder_that_datasets_saved_gives_its_rows_in_order(tmp_path: Path):
    datasets = pytest.importorskip("datasets")
    wanted = [{"messages": [{"role": "user", "content": f"q{n}"}], "level": n} for n in range(2300)]
    datasets.disable_progress_bars()
    made = datasets.Dataset.from_list(wanted)
    made.save_to_disk(tmp_path / "all", num_shards=2)
    found = find_files([str(tmp_path / "all")])
    files = LocalFiles(found, tmp_path / "scratch")
    assert (files.num_rows, len(files.chunks)) == (2300, 4), "two batches of each of two shards"
    read = rows_of(files)
    assert [row for _, _, row in read] == wanted
    assert [line for _, line, _ in read] == [*range(1, 1151), *range(1, 1151)]
    first, are_all = first_rows(found[0], 3)
    assert ([first.row(n) for n in range(len(first))], are_all) == (wanted[:3], False)
    before = fingerprint([str(tmp_path / "all")])
    made.select(range(2299)).save_to_disk(tmp_path / "all", num_shards=2)
    assert fingerprint([str(tmp_path / "all")]) != before

    datasets.DatasetDict({"train": made, "test": made}).save_to_disk(tmp_path / "both")
    assert {file.name for file in find_files([str(tmp_path / "both/test")])} == {
        "data-00000-of-00001.arrow"
    }
    both = find_files([str(tmp_path / "both")])
    assert [Path(file.path).parent.name for file in both] == ["train"]
    assert choices_of(both)[0].endswith("both: the split train is read, and not test")
    datasets.DatasetDict({"dev": made, "test": made}).save_to_disk(tmp_path / "other")
    with pytest.raises(InputError, match=r"several splits: dev, test; say which, e\.g\. .*/test"):
        find_files([str(tmp_path / "other")])


def read_all(tmp_path: Path, text: bytes) -> list[Mapping[str, Any]]:
    (tmp_path / "rows.jsonl").write_bytes(text)
    found = find_files([str(tmp_path / "rows.jsonl")])
    files = LocalFiles(found, tmp_path / "scratch")
    rows = [row for _, _, row in rows_of(files)]
    assert files.num_rows == len(rows)
    first, are_all = first_rows(found[0], 100)
    assert ([first.row(n) for n in range(len(first))], are_all) == (rows, True)
    return rows


def test_whole_numbers_keep_all_their_digits(tmp_path: Path):
    large = 2**100
    text = b'{"a": %d, "b": [-%d], "c": 0.1234567890123456789, "d": "%d"}\n' % ((large,) * 3)
    (row,) = read_all(tmp_path, text)
    assert row == {"a": large, "b": [-large], "c": 0.12345678901234568, "d": str(large)}
    assert isinstance(row["a"], int)


def test_a_pipe_is_refused_for_it_can_be_read_once(tmp_path: Path):
    os.mkfifo(tmp_path / "rows.jsonl")
    with pytest.raises(InputError, match="is a pipe, which can be read once"):
        find_files([str(tmp_path / "rows.jsonl")])
    read, write = os.pipe()  # what a shell gives for `<(command)`
    with os.fdopen(read), os.fdopen(write), pytest.raises(InputError, match="is a pipe"):
        find_files([f"/dev/fd/{read}"])


def test_numbers_of_32_bits_keep_the_digits_that_they_have(tmp_path: Path):
    short, half = pa.float32(), pa.float16()
    columns = {
        "answer": pa.array([0.1, None], short), "long": pa.array([0.1, 1 / 3]),
        "half": pa.array(np.array([0.1, 2.0], np.float16), half),
        "inside": pa.array([{"a": [0.7], "b": None}, {"a": [16777216.0], "b": 1.5}],
                           pa.struct([("a", pa.list_(short)), ("b", short)])),
    }  # fmt: skip
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table(columns), file)
    rows, _ = first_rows(find_files([str(file)])[0], 10)
    assert [rows.row(n) for n in range(2)] == [
        {"answer": 0.1, "long": 0.1, "half": 0.1, "inside": {"a": [0.7]}},
        {"answer": None, "long": 1 / 3, "half": 2.0, "inside": {"a": [16777216.0], "b": 1.5}},
    ]


def test_a_byte_order_mark_is_no_part_of_the_first_row(tmp_path: Path):
    assert read_all(tmp_path, b'\xef\xbb\xbf{"a": 1}\n{"a": 2}\n') == [{"a": 1}, {"a": 2}]
    assert read_all(tmp_path, b'\xef\xbb\xbf\n{"a": 1}') == [{"a": 1}]


def rows_read(text: str, tmp_path: Path) -> Rows:
    (tmp_path / "rows.jsonl").write_text(text)
    return first_rows(find_files([str(tmp_path / "rows.jsonl")])[0], 100)[0]


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1, "x": 2, "a": 1}',
        '{"b": {"c": [{"a": 1, "a": 2}]}}',
        r'{"b": NaN, "c": {"a": 1, "\u0061": 2}}',
        "{" + ",".join(f'"{number}": 0' for number in range(100_000)) + ', "a": 1, "a": 2}',
    ],
)
def test_a_key_that_stands_twice_makes_a_bad_row(text: str, tmp_path: Path):
    with pytest.raises(BadRow, match="the key 'a' stands twice in one object"):
        rows_read(text, tmp_path).row(0)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("NaN", "NaN is no JSON"),
        ('{"x": [Infinity]}', "Infinity is no JSON"),
        ("-Infinity", "-Infinity is no JSON"),
        ("1e400", "Infinity is no JSON"),
        (r'"\ud83d"', "half an emoji is no text"),
    ],
)
def test_what_is_no_json_harms_only_those_who_read_it(written: str, said: str, tmp_path: Path):
    row = rows_read(f'{{"a": "b", "score": {written}}}', tmp_path).row(0)
    assert row["a"] == "b"
    assert (list(row), "score" in row, row.get("x")) == (["a", "score"], True, None)
    for read in (row.get, row.__getitem__):
        with pytest.raises(BadRow, match=f"score: {said}"):
            read("score")


def _cut_off(tmp_path: Path) -> Path:
    file = tmp_path / "x.jsonl.gz"
    file.write_bytes(gzip.compress(b'{"a": 1}\n' * 1000)[:-20])
    return file


def _damaged(tmp_path: Path) -> Path:
    file = tmp_path / "x.parquet"
    pq.write_table(pa.table({"a": list(range(1000))}), file, compression="none")
    content = bytearray(file.read_bytes())
    content[4:200] = bytes(196)
    file.write_bytes(content)
    return file


@pytest.mark.parametrize("made", [_cut_off, _damaged])
def test_a_file_that_cannot_be_read_is_named(made: Callable[[Path], Path], tmp_path: Path):
    (found,) = find_files([str(made(tmp_path))])
    with pytest.raises(InputError, match=rf"files: .*{found.name}( cannot be read)?: \S"):
        first_rows(found, 10_000)


@pytest.mark.parametrize(
    ("name", "begin"),
    [("a.jsonl.gz", b'{"a": "'), ("a.json.gz", b'[{"a": "'), ("a.csv.gz", b"a\n")],
)
def test_a_row_that_would_fill_the_memory_is_refused(
    name: str, begin: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A packed file of a kilobyte holds one of a mebibyte."""
    monkeypatch.setattr("infra.data_files.rows.MOST_ROW", 1 << 20)
    with gzip.open(tmp_path / name, "wb") as out:
        out.write(begin + b"x" * (4 << 20))
    for read in (lambda f: first_rows(f, 3), lambda f: LocalFiles([f], tmp_path / "scratch")):
        with pytest.raises(InputError, match="a row has more than"):
            read(find_files([str(tmp_path / name)])[0])


def test_a_packed_file_is_unpacked_once_until_it_changes(tmp_path: Path):
    file, copies = tmp_path / "x.jsonl.gz", tmp_path / "copies"

    def opened(content: bytes) -> tuple[Path, int]:
        """The copy, and the file on disk that it is."""
        file.write_bytes(gzip.compress(content))
        copy = local_copy(*find_files([str(file)]), copies)
        assert copy.read_bytes() == content
        return copy, copy.stat().st_ino

    first = opened(b'{"a": 1}\n')
    again = local_copy(*find_files([str(file)]), copies)  # another attempt at the stage
    assert (again, again.stat().st_ino) == first
    assert opened(b'{"a": 2}\n') != first
    assert len(list(copies.iterdir())) == 2


def test_copies_that_nobody_reads_are_removed_and_nothing_is_left_of_a_failed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    old, read = tmp_path / "copies" / "old.jsonl", tmp_path / "copies" / "read.jsonl"
    old.parent.mkdir()
    for file, accessed in ((old, 1.0), (read, time.time())):
        file.touch()
        os.utime(file, (accessed, 1.0))
    with pytest.raises(StorageError, match="cannot be copied"):
        local_copy(*find_files([str(_cut_off(tmp_path))]), old.parent)
    assert list(old.parent.iterdir()) == [read]
    monkeypatch.setattr(home_module, "_MOST_SHARE", 1e-9)
    (tmp_path / "zeros.jsonl.gz").write_bytes(gzip.compress(bytes(1 << 20)))
    with pytest.raises(InputError, match=r"zeros\.jsonl\.gz, uncompressed, has more than .* GB"):
        local_copy(*find_files([str(tmp_path / "zeros.jsonl.gz")]), old.parent)
    assert list(old.parent.iterdir()) == [read]


def test_a_bucket_without_keys_says_which_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")  # or the network is asked for keys
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(StorageError, match=r"read: .*\. No complete key .* set AWS_ACCESS_KEY_ID"):
        find_files(["s3://bucket-without-keys/rows.jsonl"])
