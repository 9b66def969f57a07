"""A file that is something else than its name says is named in words by every reader."""

from __future__ import annotations

import io
import pickle
import re
import sqlite3
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save

from engines.chat.chat_folder import read_json
from flows.checks.hook_checks import hook_problems
from flows.command.models.serve import planned_fleets
from flows.load import load_recipe
from infra.data_files.chunks import LocalFiles, first_rows
from infra.data_files.files import find_files
from infra.errors import InputError
from tasks.model_folder.folder_report import report_model, template_text
from tasks.model_folder.model_files import ModelFiles
from tasks.model_folder.read_tensors import stored_tensors

pytestmark = pytest.mark.unit


def _tar() -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("rows.jsonl"))
    return made.getvalue()


def _zip(member: str) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr(member, "x" * 50)
    return made.getvalue()


def _numpy(write: Any) -> bytes:
    made = io.BytesIO()
    write(made, np.zeros(4))
    return made.getvalue()


def _sqlite() -> bytes:
    with sqlite3.connect(":memory:") as made:
        made.execute("create table a (b)")
    return made.serialize()


def _parquet() -> bytes:
    made = io.BytesIO()
    pq.write_table(pa.table({"a": [1]}), made)
    return made.getvalue()


SAFETENSORS = save({"a": np.zeros(4, np.float32)})
KINDS = {
    "tar": (_tar(), "is a tar archive; unpack it"),
    "zip": (_zip("rows.jsonl"), "is a zip archive; unpack it"),
    "spreadsheet": (_zip("[Content_Types].xml"), "is a spreadsheet or another Office"),
    "PyTorch": (_zip("archive/data.pkl"), "is a PyTorch file; load it with torch and save"),
    "old PyTorch": (pickle.dumps(0x1950A86A20F9469CFC6C, 2), "is an old PyTorch file; load"),
    "pickle": (pickle.dumps([{"a": 1}]), "is a pickle; save it as JSONL or CSV"),
    "npy": (_numpy(np.save), r"is a NumPy array \(.npy\); save it as JSONL or CSV"),
    "npz": (_numpy(np.savez), "is an archive of NumPy arrays"),
    "GGUF": (b"GGUF\x03\0\0\0" + bytes(16), "is a GGUF model; name it .gguf and give it as"),
    "HDF5": (b"\x89HDF\r\n\x1a\n" + bytes(99), "is HDF5; save it as JSONL or CSV"),
    "SQLite": (_sqlite(), "is an SQLite database; save it as JSONL or CSV"),
    "program": (b"\x7fELF\x02\x01\x01" + bytes(99), r"is a program \(ELF\); give the file"),
    "PDF": (b"%PDF-1.4\n1 0 obj", "is a PDF; save it as JSONL or CSV"),
    "picture": (b"\x89PNG\r\n\x1a\n" + bytes(9), "is a picture; only text is read"),
    "page": (b"\n <!DOCTYPE html><html>log in", "is a web page or XML, as a failed download"),
    "zeros": (bytes(5000), "is nothing but zeros, as a copy that broke off leaves"),
    "UTF-16": ('{"a": 1}'.encode("utf-16-le"), "is UTF-16; save it as UTF-8"),
    "pointer": (b"version https://git-lfs.github.com/spec/v1\noid 1", "run `git lfs pull`"),
}  # fmt: skip
ROWS_OR_MODEL = {
    "a.jsonl": {"safetensors": (SAFETENSORS, "is a file of safetensors; give its model's folder")},
    "a.jsonl.gz": {"text": (b'{"a": 1}\n', "is text; name it .jsonl or .csv if it holds rows")},
    "a.parquet": {"text": (b'{"a": 1}\n', "is text; name it .jsonl"), "empty": (b"", "is empty")},
    "model.safetensors": {"Parquet": (_parquet(), "is Parquet; name it .parquet")},
    "m.gguf": {"safetensors": (SAFETENSORS, "is a file of safetensors; give its model's folder")},
}
"""what only readers of some files refuse"""


def _refused_rows(file: Path) -> list[str]:
    found, said = find_files([str(file)]), list[str]()
    for read in (lambda: first_rows(found[0], 9), lambda: LocalFiles(found, file.parent / "x")):
        with pytest.raises(InputError) as caught:
            read()
        said.append(str(caught.value))
    return said


def _refused_model(file: Path) -> list[str]:
    if file.suffix == ".gguf":
        return list(report_model(str(file)).problems)
    with pytest.raises(InputError) as caught:
        stored_tensors(ModelFiles(str(file.parent)))
    return [str(caught.value)]


@pytest.mark.parametrize("name", ROWS_OR_MODEL)
def test_every_reader_says_in_words_what_a_file_is(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path / "home"))
    is_model = name.endswith(("gguf", "safetensors"))
    own = {"gguf": "GGUF"}.get(name.rpartition(".")[2])
    for number, (kind, (content, words)) in enumerate((KINDS | ROWS_OR_MODEL[name]).items()):
        if kind == own:
            continue
        file = tmp_path / str(number) / name
        file.parent.mkdir()
        file.write_bytes(content)
        for said in _refused_model(file) if is_model else _refused_rows(file):
            assert re.search(words, said), (kind, said)
            assert name in said


@pytest.mark.parametrize(
    "names", ["ID3,BZh", "RIFF,fLaC", "BZhang,OggS", "GGUF,PAR1", "MM,II*", "Obj,PAR1"]
)
def test_names_of_columns_that_begin_as_other_files_do_are_text(names: str, tmp_path: Path):
    (tmp_path / "a.csv").write_text(f"{names}\n1,2\n")
    rows, _ = first_rows(find_files([str(tmp_path / "a.csv")])[0], 9)
    assert dict(rows.row(0)) == dict(zip(names.split(","), "12", strict=True))


@pytest.mark.parametrize("kind", ["PDF", "zip", "pickle"])
def test_what_is_given_as_a_recipe_or_a_template_is_named_too(kind: str, tmp_path: Path):
    (tmp_path / "a.yaml").write_bytes(KINDS[kind][0])
    words = KINDS[kind][1].partition(";")[0]
    for read in (load_recipe, template_text, lambda name: planned_fleets(Path(name))):
        with pytest.raises(InputError, match=rf"a.yaml.*{words}; give the right file"):
            read(str(tmp_path / "a.yaml"))
    (tmp_path / "hook.py").write_bytes(KINDS[kind][0])
    assert list(hook_problems([str(tmp_path / "hook.py")], [])) == [
        f"hooks: hook.py: {words}; give Python code"
    ]


def test_text_files_of_a_model_are_named_too(tmp_path: Path):
    for content, words in (
        (b"%PDF-1.4\n", "generation_config.json: is a PDF; give the right file"),
        (KINDS["pointer"][0], "generation_config.json: is not there yet: it is a pointer of"),
    ):
        (tmp_path / "generation_config.json").write_bytes(content)
        with pytest.raises(InputError, match=words):
            read_json(tmp_path / "generation_config.json")
