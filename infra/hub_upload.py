"""Putting a model folder on a hub."""

from __future__ import annotations

from pathlib import Path

from infra.errors import InputError
from infra.hub import explained, hub_name


def upload_model(folder: Path, to: str, message: str, *, is_public: bool) -> str:
    """Upload all of `folder` as one commit to `hf:org/name@branch`; returns the commit's page.

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
            repo_id=name.repo, folder_path=folder, commit_message=message, revision=name.revision
        )
    return str(done.commit_url)
