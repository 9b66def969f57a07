"""Models on a hub that speaks huggingface_hub's HTTP, by the name `hf:org/name@revision`.

Where the hub is, whose token is used and where files are kept is said by huggingface_hub's own
variables: HF_ENDPOINT, HF_TOKEN, HF_HOME, HF_HUB_OFFLINE.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from infra.errors import InputError, StorageError, TributaryError

PREFIX = "hf:"
_REPO = re.compile(r"[\w.-]+(/[\w.-]+)?")
_OF_HUB = re.compile(r"\w[\w.-]*/[\w.-]+")
_COMMIT = re.compile(r"[0-9a-f]{40}")
MODEL_FILES = ["*.json", "*.jinja", "*.txt", "*.model", "*.safetensors", "LICENSE*", "README.md"]
"""of a model's files; other formats and files in folders are neither downloaded nor pushed"""


@dataclass(frozen=True, slots=True)
class HubName:
    """Example: repo="Qwen/Qwen3-0.6B", revision="main" """

    repo: str
    revision: str

    @property
    def is_pinned(self) -> bool:
        """Whether it can only ever mean the same files."""
        return _COMMIT.fullmatch(self.revision) is not None

    def __str__(self) -> str:
        return f"{PREFIX}{self.repo}@{self.revision}"


def hub_hint(text: str) -> str:
    """What to add to an error about a folder that is missing, where its name could be a hub's."""
    return f". A model of the Hub is written hf:{text}" if _OF_HUB.fullmatch(text) else ""


def is_hub_name(text: str) -> bool:
    return text.startswith(PREFIX)


def hub_name(text: str) -> HubName:
    """Raises InputError that shows the form."""
    repo, _, revision = text.removeprefix(PREFIX).removeprefix("//").partition("@")
    if not _REPO.fullmatch(repo) or (not revision and "@" in text):
        raise InputError(f"{text}: write a model on the hub as hf:ORG/NAME or hf:ORG/NAME@REVISION")
    return HubName(repo, revision or "main")


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
    """Where fsspec finds the files of exactly one commit. Raises as `pinned` does."""
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
    """What an error of the hub's library means to a person."""
    from huggingface_hub import errors

    if isinstance(error, errors.OfflineModeIsEnabled):
        return InputError(f"{name} has to be asked of the hub, and HF_HUB_OFFLINE is set: unset it")
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
    if isinstance(error, errors.LocalEntryNotFoundError) or _is_network(error):
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
    return " ".join(str(error).split())[:200]
