"""Which files of a folder are read: one subset and one split, chosen or asked for."""

from __future__ import annotations

import json
import time
from pathlib import Path

import fsspec
import pytest

from infra.data_files import folders
from infra.data_files.files import choices_of, find_files, fingerprint
from infra.errors import InputError

pytestmark = pytest.mark.unit

README = """---
license: mit
configs:
{configs}
---
# A data set

---
"""
ONE = """- config_name: default
  data_files:
  - split: train
    path: data/train-*
  - split: test
    path:
    - data/test-*
"""
TWO = """- config_name: main
  data_files:
  - split: train
    path: main/train-*
  - split: test
    path: main/test-*
- config_name: socratic
  data_files:
  - split: test
    path: socratic/test-*
"""
CHATS = """- config_name: default
  data_files:
  - split: train_sft
    path: data/train_sft-*
  - split: test_sft
    path: data/test_sft-*
"""
PLAIN = """- config_name: all
  default: true
  data_files: '*.csv'
- config_name: few
  data_dir: few
  data_files: [a.csv, b.csv]
"""


def made(folder: Path, *names: str, configs: str = "") -> str:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}\n")
    if configs:
        (folder / "README.md").write_text(README.format(configs=configs))
    return str(folder)


def read(folder: str, asked: str = "") -> tuple[list[str], list[str]]:
    """Paths below the folder, and what is said of a choice."""
    found = find_files([f"{folder}/{asked}" if asked else folder])
    said = [choice.removeprefix(f"{folder}: ") for choice in choices_of(found)]
    return [str(Path(file.path).relative_to(folder)) for file in found], said


def test_a_copy_of_a_hub_repository_is_read_as_its_readme_says(tmp_path: Path):
    train = [f"data/train-0000{n}-of-00002.parquet" for n in range(2)]
    one = made(tmp_path / "one[1]", *train, "data/test-0.parquet", "old.jsonl", configs=ONE)
    assert read(one) == (train, ["the split train is read, and not test"])
    for asked in ("test", "default/test"):
        assert read(one, asked) == (["data/test-0.parquet"], [])
    with pytest.raises(InputError, match=r"no file matches .*/tset"):
        read(one, "tset")


def test_a_subset_is_asked_for_where_there_are_several(tmp_path: Path):
    names = ["main/train-0.parquet", "main/test-0.parquet", "socratic/test-0.parquet"]
    two = made(tmp_path / "two", *names, configs=TWO)
    with pytest.raises(InputError, match=r"several subsets: main, socratic; say which, e\.g\. .*/"):
        read(two)
    assert read(two, "main")[0] == [names[0]]
    assert read(two, "main")[1][0].endswith("/main: the split train is read, and not test")
    assert read(two, "main/test") == ([names[1]], [])
    assert read(two, "socratic") == ([names[2]], [])
    bare = made(tmp_path / "bare", *names)
    with pytest.raises(InputError, match="several subsets: main, socratic"):
        read(bare)
    assert read(bare, "main/train") == ([names[0]], [])


def test_splits_of_other_names_are_listed_and_not_guessed(tmp_path: Path):
    chats = made(tmp_path, "data/train_sft-0.parquet", "data/test_sft-0.parquet", configs=CHATS)
    with pytest.raises(InputError, match="several splits: train_sft, test_sft; say which"):
        read(chats)
    assert read(chats, "train_sft") == (["data/train_sft-0.parquet"], [])


def test_the_default_subset_is_read_and_the_other_one_named(tmp_path: Path):
    folder = made(tmp_path, "x.csv", "few/a.csv", "few/b.csv", configs=PLAIN)
    assert read(folder) == (["x.csv"], ["the subset all is read, and not few"])
    assert read(folder, "few") == (["few/a.csv", "few/b.csv"], [])


def test_a_folder_of_files_is_read_whole_unless_their_names_are_those_of_splits(tmp_path: Path):
    plain = made(tmp_path / "plain", "b.jsonl", "a.jsonl.gz", ".hidden.jsonl", "notes.txt")
    assert read(plain) == (["a.jsonl.gz", "b.jsonl"], [])
    split = made(tmp_path / "split", "train.jsonl", "train_2.jsonl", "dev.jsonl", "my-test.jsonl")
    assert read(split) == (
        ["train.jsonl", "train_2.jsonl"],
        ["the split train is read, and not validation, test"],
    )
    assert read(split, "validation") == (["dev.jsonl"], [])
    deep = made(tmp_path / "deep", "train/a.csv", "validation/a.csv")
    assert read(deep, "validation") == (["validation/a.csv"], [])
    assert read(deep)[0] == ["train/a.csv"]
    mixed = made(tmp_path / "mixed", "train.jsonl", "more.jsonl")
    with pytest.raises(InputError, match=r"whose names say none \(more\.jsonl\)"):
        read(mixed)
    twice = made(tmp_path / "twice", "rows.jsonl", "rows.csv")
    with pytest.raises(InputError, match=r"several kinds \(\.csv, \.jsonl\), perhaps the same"):
        read(twice)


def state(folder: str, *names: str) -> None:
    """What `datasets` writes beside the files that it saves."""
    for name in names:
        files = [{"filename": "data-0.arrow"}]
        (Path(folder) / name / "state.json").write_text(json.dumps({"_data_files": files}))


def test_files_beside_a_saved_dataset_are_not_passed_over(tmp_path: Path):
    names = ["train/data-0.arrow", "test/data-0.arrow"]
    alone = made(tmp_path / "alone", *names, "train/cache-12.arrow", "dataset_dict.json")
    state(alone, "train", "test")
    assert read(alone)[0] == ["train/data-0.arrow"]
    for other in ("x.jsonl", "more/y.csv"):
        mixed = made(tmp_path / other.split("/")[0], *names, other)
        state(mixed, "train", "test")
        said = rf"what `datasets` saved \(test, train\), and other files \({other}\); give one"
        with pytest.raises(InputError, match=said) as refused:
            read(mixed)
        for way in suggested(refused.value):
            assert find_files([way])


def suggested(error: Exception) -> list[str]:
    """What an error tells a person to write."""
    _, said, ways = str(error).partition("e.g. ")
    assert said, error
    return ways.split(" or ")


README_DEFAULT = TWO.replace("- config_name: main\n", "- config_name: main\n  default: true\n")


@pytest.mark.parametrize(
    ("names", "configs", "asked", "got"),
    [
        (["main/test-0.csv", "main/train-0.csv", "socratic/test-0.csv"], TWO, "test", 1),
        (["main/train-0.csv", "socratic/test-0.csv"], TWO, "", 1),
        (["data/train_sft-0.csv", "data/test_sft-0.csv"], CHATS, "", 1),
        (["x.jsonl", "sub/y.jsonl"], "", "", 2),
        (["train.jsonl", "test.jsonl", "sub/y.jsonl"], "", "", 2),
        (["dev.jsonl", "test.jsonl"], "", "", 1),
        (["sub/dev.csv", "sub/test.csv"], "", "", 1),
        (["sub/dev.csv", "sub/test.csv", "b/dev.csv", "b/test.csv"], "", "", 1),
        (["data/a/x.csv", "data/b/y.csv"], "", "", 1),
        (["data/dev/x.csv", "data/test/y.csv"], "", "", 1),
        (["train/a/x.csv", "test/a/x.csv", "train/b/y.csv"], "", "", 1),
        (["x.jsonl", "y.csv"], "", "", 1),
        (["data/x.jsonl", "data/y.csv", "z.csv"], "", "", 1),
        (["test/x.jsonl", "test/y.csv", "train/z.csv"], "", "test", 1),
    ],
)
def test_what_an_error_suggests_works_when_it_is_written(
    names: list[str], configs: str, asked: str, got: int, tmp_path: Path
):
    folder = made(tmp_path, *names, configs=configs)
    with pytest.raises(InputError) as refused:
        read(folder, asked)
    ahead, files = suggested(refused.value), set[str]()
    for _ in range(2):  # a suggested subset may have several splits
        further: list[str] = []
        for written in ahead:
            try:
                files |= {file.path for file in find_files([written])}
            except InputError as error:
                further += suggested(error)
        ahead = further
    assert not ahead
    assert len(files) == got


def test_the_default_subset_has_its_own_name_and_gives_the_split_that_is_asked_for(tmp_path: Path):
    names = ["main/train-0.csv", "main/test-0.csv", "socratic/test-0.csv"]
    folder = made(tmp_path, *names, configs=README_DEFAULT)
    chosen = "the subset main is read, and not socratic"
    assert read(folder)[1] == [f"{chosen}; the split train is read, and not test"]
    assert read(folder, "test")[0] == ["main/test-0.csv"]
    assert read(folder, "test")[1][0].endswith(chosen)
    with pytest.raises(InputError, match=r"no file matches .*/nope; there are main, socratic, tr"):
        read(folder, "nope")


def test_a_folder_far_away_is_read_alike(tmp_path: Path):
    far = fsspec.filesystem("memory")
    for name in ("train-0.jsonl", "test-0.jsonl"):
        far.pipe_file(f"/hub/data/{name}", b"{}\n")
    found = find_files(["memory://hub"])
    assert [file.path for file in found] == ["/hub/data/train-0.jsonl"]
    assert [file.path for file in find_files(["memory://hub/test"])] == ["/hub/data/test-0.jsonl"]
    assert list(fingerprint(["memory://hub/test"])) == ["1: test-0.jsonl"]


def test_a_subset_that_was_not_fetched_is_named(tmp_path: Path):
    folder = made(tmp_path, "main/train-0.parquet", configs=TWO)
    with pytest.raises(
        InputError, match=r"none of the files is there that README\.md names for soc"
    ):
        read(folder, "socratic")


@pytest.mark.parametrize("asked", ["none", "test", "none.jsonl", "a/b/c/d", "*.jsonl"])
def test_a_path_that_is_not_there_is_said_so(asked: str, tmp_path: Path):
    (tmp_path / "notes.txt").write_text("x")
    made(tmp_path, "deep/one/two/rows.csv", "deep/none.csv", "src/my-test.csv")
    with pytest.raises(InputError, match="no file matches"):
        find_files([f"{tmp_path}/{asked}"])


def test_a_readme_that_is_no_yaml_is_named(tmp_path: Path):
    with pytest.raises(InputError, match=r"README\.md: its first part is no YAML"):
        read(made(tmp_path, "a.csv", configs=" - {"))
    with pytest.raises(InputError, match=r"README\.md: .*it has aliases"):
        read(made(tmp_path, "a.csv", configs=f"- &a {{}}\n{PLAIN}- *a"))


@pytest.mark.parametrize(
    "configs",
    [
        ONE.replace("data/train-*", "../secret.jsonl"),
        "- config_name: default\n  data_dir: ..\n  data_files: '*.jsonl'\n",
        "- config_name: default\n  data_dir: /\n  data_files: '**/*.jsonl'\n",
        "- config_name: default\n  data_files: '**/../**/../**/../**/*.jsonl'\n",
    ],
)
def test_a_list_of_a_folder_that_leads_out_of_it_is_refused(configs: str, tmp_path: Path):
    (tmp_path / "secret.jsonl").write_text("{}\n")
    folder = made(tmp_path / "set", "data/test-1.jsonl", configs=configs)
    began = time.process_time()
    with pytest.raises(InputError, match=r"names .*, which is outside of it"):
        find_files([folder])
    assert time.process_time() - began < 2, "it looked for such files all over the disk"


def test_a_link_out_of_a_folder_is_refused_and_the_hub_s_cache_is_read(tmp_path: Path):
    secret = tmp_path / "secret.jsonl"
    secret.write_text("{}\n")
    folder = Path(made(tmp_path / "set", "data/train-1.jsonl"))
    (folder / "data" / "train-2.jsonl").symlink_to("train-1.jsonl")
    assert len(find_files([str(folder)])) == 2
    (folder / "data" / "train-3.jsonl").symlink_to(secret)
    told = r"names data/train-3\.jsonl, a link to .*/secret\.jsonl, which is outside of it"
    with pytest.raises(InputError, match=told):
        find_files([str(folder)])
    copy = tmp_path / "hub" / "datasets--a--b"
    (copy / "blobs").mkdir(parents=True)
    (copy / "blobs" / "0a1b").write_text("{}\n")
    (copy / "snapshots" / "c0ffee" / "data").mkdir(parents=True)
    (copy / "snapshots" / "c0ffee" / "data" / "train.jsonl").symlink_to("../../../blobs/0a1b")
    for name in ("c0ffee", "c0ffee/data"):
        assert len(find_files([str(copy / "snapshots" / name)])) == 1


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ('{"_data_files": [{"filename": "../secret.arrow"}]}', "secret.arrow, which is outside"),
        ("{}", "state.json lists no data files; copy the folder again"),
        ("[" * 99_999, "state.json lists no data files"),
    ],
)
def test_a_saved_data_set_that_lists_other_files_is_refused(state: str, said: str, tmp_path: Path):
    (tmp_path / "state.json").write_text(state)
    with pytest.raises(InputError, match=said):
        find_files([str(tmp_path)])


def test_a_folder_with_more_files_than_data_has_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(folders, "MOST_FILES", 3)
    few = made(tmp_path, "a.jsonl", "b.jsonl", "deep/c.jsonl")
    assert len(read(made(tmp_path / "flat", "a.jsonl", "b.jsonl", "c.jsonl"))[0]) == 3
    with pytest.raises(InputError, match=r"holds more than 3 files; give the folder of the data"):
        read(few)
