"""A small file of Parquet that stands for more than memory holds is refused before it is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infra.data_files import tables
from infra.data_files.chunks import LocalFiles, first_rows
from infra.data_files.files import find_files
from infra.errors import InputError

pytestmark = pytest.mark.unit

MANY, TEXT = 5_000, "x" * 1_000_000
"""5 GB, of which a dictionary holds one megabyte"""
REPEATED = pa.DictionaryArray.from_arrays(pa.array([0] * MANY, pa.int32()), pa.array([TEXT]))
STARTS = pa.array([0, MANY - 1, MANY], pa.int32())
JSON = pa.DictionaryArray.from_arrays(REPEATED.indices, pa.array([f'"{TEXT}"']))
BOMBS: dict[str, Any] = {
    "text": REPEATED,
    "messages in two rows": pa.ListArray.from_arrays(STARTS, REPEATED),
    "objects": pa.StructArray.from_arrays([REPEATED], ["content"]),
    "a map": pa.MapArray.from_arrays(STARTS, pa.array(map(str, range(MANY))), REPEATED),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_text_that_a_dictionary_repeats_fills_no_memory(name: str, tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"q": BOMBS[name]}), file)
    assert file.stat().st_size < 200_000
    found, before = find_files([str(file)]), pa.default_memory_pool().max_memory()
    with pytest.raises(InputError, match=r"a.parquet: row group 1, of \d+ rows, may take more"):
        first_rows(found[0], 2)
    files = LocalFiles(found, tmp_path)
    with pytest.raises(InputError, match=r"than 4096 MiB of memory; .*fewer rows a group"):
        files.read(files.chunks[0])
    assert pa.default_memory_pool().max_memory() < max(before, 50_000_000)


@pytest.mark.parametrize(
    ("column", "options"),
    [
        (pa.array([7] * 400_000), {}),
        (pa.nulls(400_000, pa.int64()), {}),
        (pa.array([[7] * 400_000]), {}),
        (pa.array([b"x" * 400] * 4000, pa.binary(400)), {}),
        (
            pa.array(["x" * 400] * 4000),
            {"use_dictionary": False, "column_encoding": "DELTA_BYTE_ARRAY"},
        ),
    ],
)
def test_other_values_that_take_no_room_in_the_file_are_counted(
    column: Any, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "MOST_DECODED", 1_500_000)
    pq.write_table(pa.table({"q": column}), tmp_path / "a.parquet", **options)
    assert (tmp_path / "a.parquet").stat().st_size < 10_000
    with pytest.raises(InputError, match="may take more than 1 MiB of memory"):
        first_rows(find_files([str(tmp_path / "a.parquet")])[0], 2)


def test_texts_that_repeat_and_fit_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dictionary of 100 KB times 5,000 rows may be 500 MB, but is counted as 500 KB."""
    monkeypatch.setattr(tables, "MOST_DECODED", 1 << 20)
    texts = [f"{number % 1000:0100}" for number in range(5000)]
    typed = pa.array([f"[{number % 9}]" for number in range(5000)]).cast(pa.json_(pa.string()))
    pq.write_table(pa.table({"q": texts, "j": typed}), tmp_path / "a.parquet")
    found = find_files([str(tmp_path / "a.parquet")])
    files = LocalFiles(found, tmp_path)
    for rows in (files.read(files.chunks[0]), first_rows(found[0], 5000)[0]):
        assert [rows.row(at)["q"] for at in (0, 1, 4999)] == [texts[0], texts[1], texts[4999]]
        assert rows.row(7)["j"] == [7]


def _number(value: int, width: int = 0) -> bytes:
    """A number as Thrift writes it, in this many bytes or more."""
    left, found = value * 2, bytearray()
    while left > 127 or len(found) + 1 < width:
        found.append(left & 127 | 128)
        left >>= 7
    return bytes([*found, left])


def _changed(file: Path, *changes: tuple[bytes, bytes, int]) -> None:
    """Changes the footer: the n-th of some bytes into others, of the same length."""
    data = file.read_bytes()
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    for old, new, place in changes:
        assert len(old) == len(new)
        at = start
        for _ in range(place):
            at = data.index(old, at) + 1
        data = data[: at - 1] + new + data[at - 1 + len(old) :]
    file.write_bytes(data)


ROWS = b"\x16" + _number(77)
"""of the file, then of two of the three columns, then of the row group"""
FEWER = b"\x16" + _number(76)
OPTIONAL, REQUIRED = b"\x25\x02\x18\x01q", b"\x25\x00\x18\x01q"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ([(ROWS, FEWER, 1)], "its footer says 76 rows, and 77 of its row groups"),
        ([(ROWS, FEWER, 4)], "its footer says 77 rows, and 76 of its row groups"),
        (
            [(ROWS, FEWER, 4), (ROWS, FEWER, 1)],
            "column q of row group 1 holds 77 values, and the footer says 77 in 76 rows",
        ),
        ([(ROWS, FEWER, 2)], "column q of row group 1 holds 77 values, and the footer says 76"),
        (
            [(b"\x16" + _number(154), b"\x16" + _number(153), 1)],
            "column t.list.element of row group 1 holds 154 values, and the footer says 153",
        ),
        ([(OPTIONAL, REQUIRED, 1)], "column q of row group 1: its statistics are those of ano"),
        ([(b"\x18\x01n\x15", b"\x18\x01m\x15", 1)], "column n of row group 1: is called m there"),
    ],
)
def test_a_footer_that_is_not_what_the_pages_hold_is_refused(
    changes: list[tuple[bytes, bytes, int]], said: str, tmp_path: Path
) -> None:
    file = tmp_path / "a.parquet"
    rows = {"q": [str(n) for n in range(77)], "n": [*range(77)], "t": [["a", "b"]] * 77}
    pq.write_table(pa.table(rows), file)
    found = find_files([str(file)])
    assert first_rows(found[0], 100)[0].row(76) == {"q": "76", "n": 76, "t": ["a", "b"]}
    _changed(file, *changes)
    for read in (lambda: first_rows(found[0], 100), lambda: _read(found, tmp_path)):
        with pytest.raises(InputError, match=rf"a.parquet: {said}.*; the file is damaged: copy"):
            read()


def _read(found: Any, scratch: Path) -> None:
    files = LocalFiles(found, scratch)
    files.read(files.chunks[0])


def test_sizes_are_those_of_the_pages_and_no_two_columns_share_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"q": [f"{n:0400}" for n in range(3000)]}), file, row_group_size=1500)
    first, second = (pq.ParquetFile(file).metadata.row_group(n).column(0) for n in (0, 1))
    size = _number(first.total_uncompressed_size)
    original = file.read_bytes()
    _changed(file, (size, _number(1, len(size)), 1))
    monkeypatch.setattr(tables, "MOST_DECODED", 600_000)
    with pytest.raises(InputError, match=r"row group 1, of 1500 rows, may take more than"):
        _read(find_files([str(file)]), tmp_path)

    file.write_bytes(original)
    pages = [(second.dictionary_page_offset, first.dictionary_page_offset)]
    pages += [(second.data_page_offset, first.data_page_offset)]
    _changed(file, *((_number(a), _number(b, len(_number(a))), 1) for a, b in pages))
    with pytest.raises(InputError, match=r"a.parquet: two of its columns are the same pages"):
        _read(find_files([str(file)]), tmp_path)


@pytest.mark.parametrize("packed", ["zstd", "lz4"])
def test_a_packed_batch_of_an_arrow_stream_is_measured_before_it_is_unpacked(
    packed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two batches of 400 KB; each fits, and in one they do not."""
    table = pa.table({"q": ["x" * 400] * 2000})
    found = {rows: tmp_path / f"{rows}.arrow" for rows in (1000, 2000)}
    for rows, file in found.items():
        options = pa.ipc.IpcWriteOptions(compression=packed)
        with pa.ipc.new_stream(file, table.schema, options=options) as out:
            out.write_table(table, rows)
    monkeypatch.setattr(tables, "MOST_DECODED", 600_000)
    whole = find_files([str(found[1000])])
    assert LocalFiles(whole, tmp_path).num_rows == 2000
    assert first_rows(whole[0], 1500)[0].row(1499) == {"q": "x" * 400}
    for read in (lambda f: first_rows(f, 9), lambda f: LocalFiles([f], tmp_path)):
        with pytest.raises(InputError, match=r"2000.arrow: a compressed batch takes more than"):
            read(find_files([str(found[2000])])[0])


def test_columns_are_nested_as_deep_as_python_reads(tmp_path: Path) -> None:
    column: Any = pa.array(["x"])
    for _ in range(150):
        column = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), column)
    for file, nested in (("a.parquet", column), ("b.parquet", pa.array([[column[0].as_py()]]))):
        pq.write_table(pa.table({"q": nested}), tmp_path / file, store_schema=False)
    assert first_rows(find_files([str(tmp_path / "a.parquet")])[0], 9)[0].row(0)["q"]
    with pytest.raises(InputError, match=r"b.parquet: a column has more than 300 levels"):
        first_rows(find_files([str(tmp_path / "b.parquet")])[0], 9)


def test_row_groups_that_are_read_together_have_one_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes more than 400 KB, and in its file next to nothing."""
    monkeypatch.setattr(tables, "MOST_DECODED", 1 << 20)
    pq.write_table(pa.table({"q": ["x" * 400] * 3000}), tmp_path / "a.parquet", row_group_size=1000)
    files = LocalFiles(find_files([str(tmp_path / "a.parquet")]), tmp_path)
    assert len(files.read_together(files.chunks[:2])) == 2
    with pytest.raises(InputError, match=r"a.parquet: 3 row groups that are read together take mo"):
        files.read_together(files.chunks)


def test_texts_with_the_beginnings_of_others_are_counted_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a list they cannot be, as a single row may hold any number."""
    monkeypatch.setattr(tables, "MOST_DECODED", 1 << 20)
    texts = [f"{number:0100}" for number in range(5000)]
    for name, column in (("flat", texts), ("list", [texts])):
        pq.write_table(
            pa.table({"q": column}),
            tmp_path / f"{name}.parquet",
            use_dictionary=False,
            column_encoding="DELTA_BYTE_ARRAY",
        )
    rows, _ = first_rows(find_files([str(tmp_path / "flat.parquet")])[0], 5000)
    assert rows.row(4999) == {"q": texts[4999]}
    with pytest.raises(InputError, match="may take more than 1 MiB"):
        first_rows(find_files([str(tmp_path / "list.parquet")])[0], 1)


def test_texts_are_counted_exactly(tmp_path: Path) -> None:
    """Texts of 3, 3 and 2 bytes, each with four that name it; whole numbers of eight, and a byte
    with the bits that tell of nulls."""
    column = pa.StructArray.from_arrays([pa.array(["abc", "abc", "de"])], ["a"])
    pq.write_table(pa.table({"q": column, "n": [1, 2, 3]}), tmp_path / "a.parquet")
    metadata = pq.ParquetFile(tmp_path / "a.parquet").metadata
    counted = tables._counted_bytes
    assert counted(tmp_path / "a.parquet", metadata, 0, ["q.a"]) == 8 + 3 * 4 + 3 * 8 + 1
