"""Each kind of file that people have gives the same rows, whole or by chunks."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infra.data_files import chunks, json_rows
from infra.data_files.chunks import LocalFiles, first_rows
from infra.data_files.files import find_files
from infra.data_files.rows import MOST_EMPTY, BadRow
from infra.errors import InputError, StorageError

pytestmark = pytest.mark.unit
Lines = list[tuple[int, Any]]
"""where each row is, and the row or why it is bad"""


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 400)
    monkeypatch.setattr(json_rows, "_BLOCK", 50)


def row(number: int) -> dict[str, Any]:
    text = f'line {number}\nü "quoted", [{{\\ 😀' + "x" * (number % 90)
    return {"prompt": text, "answer": str(number), "left": None}


ROWS = list(map(row, range(100)))


def zstd(content: bytes) -> bytes:
    made = pa.BufferOutputStream()
    with pa.CompressedOutputStream(made, "zstd") as packed:
        packed.write(content)
    return made.getvalue().to_pybytes()


def jsonl(rows: Sequence[Any]) -> bytes:
    return "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in rows).encode()


def array(rows: Any, **form: Any) -> bytes:
    return json.dumps(rows, **form).encode()


def table(rows: Sequence[Mapping[str, Any]], delimiter: str = ",", end: str = "\r\n") -> bytes:
    made = io.StringIO()
    writer = csv.DictWriter(made, list(rows[0]), delimiter=delimiter, lineterminator=end)
    writer.writeheader()
    writer.writerows(rows)
    return made.getvalue().encode()


def parquet(rows: Sequence[Any]) -> bytes:
    made = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(rows)), made, row_group_size=7)
    return made.getvalue()


KINDS: dict[str, bytes] = {
    "a.jsonl": jsonl(ROWS),
    "b.JSONL": jsonl(ROWS),
    "c.ndjson": jsonl(ROWS).replace(b"\n", b"\r\n\r\n"),
    "d.json": jsonl(ROWS),
    "e.jsonl.gz": gzip.compress(jsonl(ROWS[:50])) + gzip.compress(jsonl(ROWS[50:])),
    "f.jsonl.zst": zstd(jsonl(ROWS[:50])) + zstd(jsonl(ROWS[50:])),
    "g.jsonl.bz2": bz2.compress(jsonl(ROWS)),
    "h.jsonl.xz": lzma.compress(jsonl(ROWS)),
    "i.json": array(ROWS),
    "j.json": b"\xef\xbb\xbf" + array(ROWS, indent=2, ensure_ascii=False) + b"\n\n",
    "k.json.gz": gzip.compress(array(ROWS, indent=1)),
    "l.jsonl": array(ROWS, separators=(",", ":")),
    "m.json": b"\n".join(array(each, indent=2) for each in ROWS),
    "n.csv": table(ROWS),
    "o.csv": b"\xef\xbb\xbf" + table(ROWS, end="\n") + b"\n",
    "p.csv": table(ROWS, ";"),
    "q.tsv": table(ROWS, "\t"),
    "r.CSV.gz": gzip.compress(table(ROWS)),
    "s.parquet": parquet(ROWS),
}


def read_whole(place: str, scratch: Path) -> Lines:
    files = LocalFiles(find_files([place]), scratch)
    found: Lines = []
    for chunk in files.chunks:
        rows = files.read(chunk)
        assert len(rows) == chunk.num_rows
        found += lines(rows)
    assert len(found) == files.num_rows
    return found


def lines(rows: chunks.Rows) -> Lines:
    found: Lines = []
    for index in range(len(rows)):
        try:
            found.append((rows.line(index), dict(rows.row(index))))
        except BadRow as error:
            found.append((rows.line(index), str(error)))
    return found


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", KINDS)
def test_each_kind_gives_the_same_rows_whole_in_part_and_from_afar(name: str, tmp_path: Path):
    (tmp_path / name).write_bytes(KINDS[name])
    place = str(tmp_path / name)
    found = read_whole(place, tmp_path / "scratch")
    assert [each for _, each in found] == ROWS
    assert len(LocalFiles(find_files([place]), tmp_path / "scratch").chunks) > 5
    for most, are_all in ((7, False), (99, False), (100, True), (1000, True)):
        first = first_rows(find_files([place])[0], most)
        assert (lines(first[0]), first[1]) == (found[:most], are_all)
    fsspec.filesystem("memory").pipe_file(f"/kinds/{name}", KINDS[name])
    assert read_whole(f"memory://kinds/{name}", tmp_path / "far") == found


def bad(content: bytes, name: str, tmp_path: Path) -> Lines:
    """Of `preview` and of a stage alike."""
    (tmp_path / name).write_bytes(content)
    found = read_whole(str(tmp_path / name), tmp_path / "scratch")
    assert lines(first_rows(find_files([str(tmp_path / name)])[0], 1000)[0]) == found
    return found


def test_a_bad_row_of_csv_is_named_by_its_line(tmp_path: Path):
    text = b'a,b\n1,"x\ny"\n1\n\n"1"2,3\n\xff,4\n5,6,7\n8,\n'
    found = bad(text, "a.csv", tmp_path)
    assert [line for line, _ in found] == [2, 4, 6, 7, 8, 9]
    assert [said for _, said in found[:2]] == [
        {"a": "1", "b": "x\ny"},
        "has 1 cells; the header has 2: a, b",
    ]
    assert found[2][1].startswith("is no row of CSV: ")
    assert found[3][1] == "a: is not UTF-8; save the file so"
    assert found[4][1] == "has 3 cells; the header has 2: a, b"
    assert found[5][1] == {"a": "8", "b": None}


def test_an_object_over_several_lines_of_jsonl_says_so(tmp_path: Path):
    found = bad(b'{"a": 1}\n{\n "a": 2\n}\n', "a.jsonl", tmp_path)
    assert [line for line, _ in found] == [1, 2, 3, 4]
    said = str(found[1][1])
    assert said.endswith("; if each object stands over several lines, name the file .json")
    assert said.startswith("is not JSON: ")
    assert "at character 2 of the row" in said


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b'{"a": 1}\r{"a": 2}\r', "its lines end with a carriage return alone: save the file"),
        (b"{'a': None}\n", "it is written as Python prints it: write it with json.dumps"),
        (b"question,answer\n1,2\n", "a table with a header is named .csv or .tsv"),
    ],
)
def test_lines_that_are_no_json_say_what_they_may_be(text: bytes, words: str, tmp_path: Path):
    assert words in str(bad(text, "a.jsonl", tmp_path)[0][1])


@pytest.mark.parametrize(
    ("text", "row"),
    [
        (b"a, b\r\n1,  2 \r\n", {"a": "1", "b": "2"}),
        (b'a , "b"\n 1, "x, \r\ny"\n', {"a": "1", "b": "x, \ny"}),
        (b"a,b\n 1, 2\n", {"a": " 1", "b": " 2"}),
        (b'a,b\r\n1,"x\r\n  y"\r\n', {"a": "1", "b": "x\n  y"}),
        (b"a;b\n1; \n", {"a": "1", "b": " "}),
        (b"a; b\n1; \n", {"a": "1", "b": None}),
    ],
)
def test_cells_of_csv_lose_their_blanks_where_the_names_have_some(
    text: bytes, row: dict[str, Any], tmp_path: Path
):
    assert bad(text, "a.csv", tmp_path) == [(2, row)]


def test_elements_of_an_array_are_bad_one_by_one(tmp_path: Path):
    text = b'[{"a": 1}, 3, {"a": 1, "a": 2}, {"a": {"b": NaN}}, "x]", {"a": 2}]'
    assert bad(text, "a.json", tmp_path) == [
        (1, {"a": 1}),
        (2, "is no JSON object"),
        (3, "the key 'a' stands twice in one object"),
        (4, "a: NaN is no JSON"),
        (5, "is no JSON object"),
        (6, {"a": 2}),
    ]
    assert bad(b"[1]\n[2]\n", "b.jsonl", tmp_path) == [(n, "is no JSON object") for n in (1, 2)]


def test_lines_without_an_end_are_not_read_to_see_the_first_rows(tmp_path: Path) -> None:
    """300 KB that stand for 300 MB; who reads the whole file is quick with empty lines."""
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b"\n" * (MOST_EMPTY + 1) + b'{"a": 1}\n'))
    found = find_files([str(tmp_path / "a.jsonl.gz")])
    with pytest.raises(InputError, match="more than a million lines in a row are empty"):
        first_rows(found[0], 10)
    assert LocalFiles(found, tmp_path / "scratch").num_rows == 1


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.json", b'[{"a": 1}, {"a": 2}', "goes on with neither `,` nor `]`"),
        ("a.json", b'[{"a": 1}, {"a": ', "is not JSON"),
        ("a.json", b'[{"a": 1} {"a": 2}]', "byte 10: the array goes on with neither"),
        ("a.json", b'[{"a": 1},]', "byte 10: is not JSON"),
        ("a.json", b'[{"a": 1}]]', "byte 10: something follows the array"),
        ("a.csv", b'a,b\n1,2\n3,"4\n5,6\n', "line 3: a quote opens here that nothing closes"),
        ("a.csv", b"a,b,a\n1,2,3\n", "two columns have one name, 'a'"),
        ("a.csv", b",".join(b"c%d" % n for n in range(50_000)) + b",c7\n1\n", "one name, 'c7'"),
        ("a.csv", b"a\n" + b"\n" * (MOST_EMPTY + 1) + b"1\n", "a million lines in a row are empty"),
        ("a.csv", b"a,b\r1,2\r3,4\r", "its lines end with a carriage return alone; save it with"),
        ("a.csv", b'{"a": "b, c"}\n', "its first line is a JSON object; name it .jsonl"),
        ("a.csv", b"," * 100_000, "its header names more than 100000 columns"),
        ("a.csv", b"", "is empty; the first row of CSV names the columns"),
        ("a.jsonl", parquet(ROWS), r"is Parquet; name it .parquet\. Read are .jsonl"),
        ("a.csv", gzip.compress(b"a\n", mtime=0), "is compressed by gzip"),
        ("a.json", '{"a": 1}'.encode("utf-16"), "is UTF-16; save it as UTF-8"),
        ("a.csv", b"PK\x03\x04 and so on", "is a zip archive; unpack it"),
        ("a.jsonl.zst", zstd(jsonl(ROWS))[:-9], "cannot be"),
        (
            "a.parquet",
            b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 1\n",
            "run `git lfs pull`",
        ),
    ],
)
def test_a_file_that_is_broken_as_a_whole_is_refused(
    name: str, content: bytes, said: str, tmp_path: Path
):
    (tmp_path / name).write_bytes(content)
    found = find_files([str(tmp_path / name)])
    for read in (
        lambda: LocalFiles(found, tmp_path / "scratch"),
        lambda: first_rows(found[0], 1000),
    ):
        with pytest.raises((InputError, StorageError), match=said) as caught:
            read()
        assert name in str(caught.value)


def test_an_array_is_read_in_the_memory_of_a_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import tracemalloc

    element = json.dumps({"a": "x" * 10_000}).encode()
    with (tmp_path / "a.json").open("wb") as file:
        file.write(b"[" + b",".join([element] * 4000) + b"]")
    found = find_files([str(tmp_path / "a.json")])
    tracemalloc.start()
    files = LocalFiles(found, tmp_path)
    read = sum(len(files.read(chunk)) for chunk in files.chunks)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (read, files.num_rows) == (4000, 4000)
    assert peak < 12 << 20


def written(made: Callable[[], pa.Table], tmp_path: Path) -> Lines:
    content = io.BytesIO()
    pq.write_table(made(), content)
    return bad(content.getvalue(), "a.parquet", tmp_path)


@pytest.mark.parametrize("groups", [1, 5, 50])
def test_the_footer_of_parquet_is_parsed_once_however_many_row_groups_it_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: int
):
    pq.write_table(pa.table({"q": list(range(50))}), tmp_path / "a.parquet", 50 // groups)
    opened = list[bool]()
    real = pq.ParquetFile

    def counted(source: Any, metadata: Any = None) -> Any:
        opened.append(metadata is None)
        return real(source, metadata=metadata)

    monkeypatch.setattr(pq, "ParquetFile", counted)
    files = LocalFiles(find_files([str(tmp_path / "a.parquet")]), tmp_path)
    read = [rows.row(n)["q"] for rows in map(files.read, files.chunks) for n in range(len(rows))]
    assert read == list(range(50))
    assert (sum(opened), len(opened)) == (1, 1 + groups)


def test_maps_and_null_fields_of_parquet_are_objects(tmp_path: Path):
    field = pa.struct([("type", pa.string()), ("description", pa.string())])
    kind = pa.struct([("name", pa.string()), ("properties", pa.map_(pa.string(), field))])
    value = {"name": "f", "properties": [("at", {"type": "string", "description": None})]}
    column = pa.array([[value, None], None], pa.large_list(kind))
    assert [each for _, each in written(lambda: pa.table({"tools": column}), tmp_path)] == [
        {"tools": [{"name": "f", "properties": {"at": {"type": "string"}}}, None]},
        {"tools": None},
    ]
    twice = pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64()))
    assert written(lambda: pa.table({"m": twice}), tmp_path) == [
        (1, "the key 'a' stands twice in one object")
    ]


def test_texts_of_every_arrow_type_are_texts(tmp_path: Path):
    types = [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
    columns = {str(at): pa.array(["x", None]).cast(kind) for at, kind in enumerate(types)}
    assert [each for _, each in written(lambda: pa.table(columns), tmp_path)] == [
        {"0": "x", "1": "x", "2": "x"},
        {"0": None, "1": None, "2": None},
    ]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (Decimal("1.5"), r"type Decimal \(1.5\) is no JSON; write it as text"),
        (date(2020, 1, 2), r"type date \(2020-01-02\)"),
        (b"x", "type bytes"),
        ({"a": [float("nan")]}, "NaN is no JSON"),
    ],
)
def test_a_cell_that_is_no_json_is_bad_where_it_is_read(value: Any, said: str, tmp_path: Path):
    pq.write_table(pa.table({"q": ["x"], "a": pa.array([value])}), tmp_path / "a.parquet")
    row = first_rows(find_files([str(tmp_path / "a.parquet")])[0], 1)[0].row(0)
    assert row["q"] == "x"
    with pytest.raises(BadRow, match=f"a: .*{said}"):
        row["a"]


@pytest.mark.filterwarnings("ignore")
def test_json_columns_of_datasets_are_parsed(tmp_path: Path):
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    rows = [{"messages": [{"role": "user", "content": "Hi", "n": None}, {"role": "assistant"}]}]
    features = datasets.Features({"messages": datasets.List(datasets.Json())})
    whole = datasets.Features({"messages": datasets.Json()})
    made = datasets.Dataset.from_list(rows, features=features)
    made.to_parquet(tmp_path / "a.parquet")
    made.save_to_disk(tmp_path / "saved")
    datasets.Dataset.from_list(rows, features=whole).to_parquet(tmp_path / "b.parquet")
    for name in ("a.parquet", "b.parquet", "saved"):
        assert read_whole(str(tmp_path / name), tmp_path) == [(1, rows[0])], name
    broken = pa.table({"m": pa.array(["{"], pa.string()).cast(pa.json_(pa.string()))})
    assert written(lambda: broken, tmp_path)[0][1].startswith("m: is not JSON")
