"""Rows of the kinds of files that a user may have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from infra.data_files.chunks import LocalFiles, first_rows
from infra.data_files.files import find_files, fingerprint
from infra.errors import InputError

pytestmark = pytest.mark.unit


def rows_of(files: LocalFiles) -> list[tuple[str, int, dict[str, Any]]]:
    return [
        (files.names[chunk.file], rows.line(index), rows.row(index))
        for chunk in files.chunks
        for rows in [files.read(chunk)]
        for index in range(len(rows))
    ]


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
    with pytest.raises(InputError, match=r"several splits \(test, train\); give one of them"):
        find_files([str(tmp_path / "both")])
    assert len(find_files([str(tmp_path / "both/test")])) == 1
