"""Models on a hub that speaks huggingface_hub's HTTP, by the name `hf:org/name@revision`.

Where the hub is, whose token is used and where files are kept is said by huggingface_hub's own
variables: HF_ENDPOINT, HF_TOKEN, HF_HOME, HF_HUB_OFFLINE.
"""

from __future__ import annotations

import functools
import glob
import re
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra.errors import InputError, StorageError, TributaryError

if TYPE_CHECKING:
    from huggingface_hub import HfApi


PREFIX = "hf:"
_REPO = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
_OF_HUB = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_REVISION = re.compile(r"\w[\w.+-]*(/\w[\w.+-]*)*")
"""a part of a path in the hub's cache, so none that leads upwards"""
_COMMIT = re.compile(r"[0-9a-f]{40}")
MODEL_FILES = ["*.json", "*.jinja", "*.txt", "*.model", "*.safetensors", "LICENSE*", "README.md"]
"""of a model's files; other formats and files in folders are neither downloaded nor pushed"""
_FRONT = re.compile(r"\A\s*---[^\S\n]*\n(.*?)\n---[^\S\n]*$", re.DOTALL | re.MULTILINE)
MOST_FRONT = 1 << 20
"""of the beginning of a card, which is all that `front_matter` needs"""
MOST_DEEP = 64
"""lists and maps of a card within one another: reading 10,000 takes most of a minute"""


@dataclass(frozen=True, slots=True)
class HubName:
    """Example: repo="Qwen/Qwen3-0.6B", revision="main" """

    repo: str
    revision: str

    @property
    def is_pinned(self) -> bool:
        """Return whether it can only ever mean the same files."""
        return _COMMIT.fullmatch(self.revision) is not None

    def __str__(self) -> str:
        return f"{PREFIX}{self.repo}@{self.revision}"


def named_without_prefix(text: str, folder: Path) -> str:
    """`hf:ORG/NAME` for a bare ORG/NAME or ORG/NAME@REVISION that can be no path in `folder`: there
    is nothing called ORG in it; else nothing."""
    repo = text.partition("@")[0]
    if not _OF_HUB.fullmatch(repo) or (folder / repo.partition("/")[0]).exists():
        return ""
    return f"{PREFIX}{text}"


def front_matter(text: str) -> Any:
    """The YAML with which the README of a model or of data begins; None without one.

    Raises ValueError for what is no YAML, or has aliases: a few can stand for any number of values.
    """
    import yaml

    found = _FRONT.match(text[:MOST_FRONT])
    try:
        depth = 0
        for event in yaml.parse(found[1]) if found else ():
            if isinstance(event, yaml.AliasEvent):
                raise ValueError("it has aliases (`*`)")
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > MOST_DEEP:
                raise ValueError(f"it is nested more than {MOST_DEEP} deep")
        return yaml.safe_load(found[1]) if found else None
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())) from None


def is_hub_name(text: str) -> bool:
    return text.startswith(PREFIX)


def hub_name(text: str) -> HubName:
    """Raises InputError that shows the form."""
    repo, _, revision = text.removeprefix(PREFIX).removeprefix("//").partition("@")
    if not _REPO.fullmatch(repo) or ("@" in text and not _REVISION.fullmatch(revision)):
        raise InputError(f"{text}: write a model on the hub as hf:ORG/NAME or hf:ORG/NAME@REVISION")
    return HubName(repo, revision or "main")


def require_no_page(text: str) -> None:
    """Raises InputError for the address of a model's page, which has no files below it."""
    page = re.match(r"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/([^/]+/[^/?#]+)", text)
    if page:
        raise InputError(f"{text} is the page of a model; write hf:{page[1]}")


def pinned(text: str) -> str:
    """The name with the commit that its revision means now, e.g. `hf:org/name@3f09...`.

    Raises InputError for a model that is missing, private or gated, and StorageError when the hub
    is out of reach.
    """
    name = hub_name(text)
    return str(name) if name.is_pinned else _pinned(name)


@functools.cache  # all parts of one command or flow mean the same commit
def _pinned(name: HubName) -> str:
    from huggingface_hub import HfApi

    with explained(str(name)):
        commit = HfApi().model_info(name.repo, revision=name.revision).sha
    if not commit:
        raise StorageError(f"the hub names no commit of {name}; give one as the revision")
    return str(HubName(name.repo, commit))


def fsspec_url(text: str) -> str:
    """Return where fsspec finds the files of exactly one commit. Raises as `pinned` does."""
    name = hub_name(pinned(text))
    return f"hf://{name.repo}@{name.revision}"


def snapshot(text: str) -> Path:
    """The model's files on this machine, from the hub's own cache where they are in it; needs no
    connection then. Raises as `pinned` does."""
    from huggingface_hub import snapshot_download

    name = hub_name(text)
    with explained(str(name)):
        return Path(
            snapshot_download(
                name.repo,
                revision=name.revision,
                allow_patterns=MODEL_FILES,
                ignore_patterns=["*/*"],
            )
        )


@contextmanager
def explained(name: str) -> Generator[None]:
    """Turn the library's errors into ours; `name` is what a person wrote."""
    try:
        yield
    except TributaryError:
        raise
    except Exception as error:
        raise explain(error, name) from error


def explain(error: Exception, name: str) -> TributaryError:
    """Return what an error of the hub's library means to a person."""
    from huggingface_hub import constants, errors

    is_absent = isinstance(error, errors.LocalEntryNotFoundError)
    offline = (
        f"{name} has to be asked of the hub, and HF_HUB_OFFLINE is set: unset it, and start the"
        " stack again (`tributary down`, `tributary up`), whose jobs have its environment"
    )
    if isinstance(error, errors.OfflineModeIsEnabled):
        return InputError(offline)
    if is_absent and constants.is_offline_mode():
        return StorageError(offline)
    if isinstance(error, errors.GatedRepoError):
        return InputError(
            f"{name} is gated: accept its terms on its page, and set HF_TOKEN to a token of that"
            " account"
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return InputError(
            f"{name}: the hub has no such model, or it is private and your token may not read it;"
            " check the name, and set HF_TOKEN for a private one"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return InputError(f"{name}: the model has no such branch, tag or commit; see its page")
    if isinstance(error, errors.HFValidationError):
        return InputError(f"{name} is no name of a model: {error}")
    if isinstance(error, errors.HfHubHTTPError):
        return _refused(error.response.status_code, name, error)
    if is_absent or _is_network(error):
        told = StorageError(
            f"{name}: the hub cannot be reached ({_short(error)}), and the model is not in the"
            " cache; check the network and HF_ENDPOINT, then run again"
        )
        told.retryable = True
        return told
    return StorageError(f"{name}: {type(error).__name__}: {_short(error)}")


def _refused(status: int, name: str, error: Exception) -> TributaryError:
    if status in (401, 403):
        return InputError(
            f"{name}: the hub refused the token ({status}): set HF_TOKEN to one that has the right"
            " to do this"
        )
    told = StorageError(f"{name}: the hub answered {status}: {_short(error)}")
    told.retryable = status >= 500 or status == 429
    return told


def _is_network(error: Exception) -> bool:
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"ConnectionError", "TimeoutError", "TransportError", "ConnectError"})


def _short(error: Exception) -> str:
    first = (str(error).strip() or type(error).__name__).splitlines()[0]  # what follows is advice
    return first.removeprefix("Got: ")[:200]


def upload_model(folder: Path, to: str, message: str, *, is_public: bool) -> str:
    """Upload all of `folder` as one commit to `hf:org/name@branch`; returns the commit's page.

    A model's files that an earlier push left there, and that `folder` lacks, are deleted with it.

    A repository that is missing is made, private unless `is_public`. Raises InputError for a
    revision that is a commit, or a token that may not do this; StorageError when the hub is out of
    reach.
    """
    from huggingface_hub import HfApi

    name = hub_name(to)
    if name.is_pinned:
        raise InputError(f"{to}: a commit cannot be pushed to; name a branch, or none for `main`")
    api = HfApi()
    with explained(str(name)):
        api.create_repo(name.repo, private=not is_public, exist_ok=True)
        if name.revision != "main":
            api.create_branch(name.repo, branch=name.revision, exist_ok=True)
        done = api.upload_folder(
            repo_id=name.repo, folder_path=folder, commit_message=message, revision=name.revision,
            delete_patterns=_there_already(api, name),
        )  # fmt: skip
    return str(done.commit_url)


def _there_already(api: HfApi, name: HubName) -> list[str]:
    """Patterns of the model's files that the branch has; no push wrote those in folders."""
    from huggingface_hub.utils import filter_repo_objects

    files = api.list_repo_files(name.repo, revision=name.revision)
    found = filter_repo_objects(files, allow_patterns=MODEL_FILES, ignore_patterns=["*/*"])
    return [glob.escape(file) for file in found]
