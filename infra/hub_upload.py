"""Putting a model folder on a hub."""

from __future__ import annotations

import glob
from pathlib import Path
from typing import TYPE_CHECKING

from infra.errors import InputError
from infra.hub import MODEL_FILES, HubName, explained, hub_name

if TYPE_CHECKING:
    from huggingface_hub import HfApi


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
