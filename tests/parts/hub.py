"""A local stand-in for a model hub's HTTP, as huggingface_hub speaks it: listing, reading by range,
commits, git LFS; private, gated and missing models; tokens."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from tests.parts.json_server import serving

TOKEN = "hf_planted"
_REPO = r"/(?P<repo>[\w.-]+/[\w.-]+)"


@dataclass
class Repo:
    """One model: its commits in order, each the whole content by path."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    is_private: bool = False
    is_gated: bool = False
    messages: list[str] = field(default_factory=list)

    def commit(
        self, files: dict[str, bytes], message: str = "", deleted: Container[str] = ()
    ) -> str:
        before = self.commits[self.head] if self.commits else {}
        kept = {path: data for path, data in before.items() if path not in deleted}
        content = {**kept, **files}
        sums = sorted((path, hashlib.sha1(data).hexdigest()) for path, data in content.items())
        name = hashlib.sha1(repr((len(self.commits), sums)).encode()).hexdigest()
        self.commits[name] = content
        self.messages.append(message)
        return name

    @property
    def head(self) -> str:
        return list(self.commits)[-1] if self.commits else "0" * 40

    def resolved(self, revision: str) -> str | None:
        if revision == "main":
            return self.head
        return revision if revision in self.commits else None


@dataclass
class Hub:
    """What the stand-in holds; `requests` are the paths that were asked for."""

    url: str = ""
    repos: dict[str, Repo] = field(default_factory=dict)
    uploads: dict[str, bytes] = field(default_factory=dict)
    """LFS objects by sha256"""
    requests: list[str] = field(default_factory=list)
    is_down: bool = False

    def add_folder(self, repo: str, folder: Path, **traits: Any) -> str:
        """A model with the folder's files; returns its commit."""
        files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        return self.repos.setdefault(repo, Repo(**traits)).commit(files)


@contextmanager
def hub_standin() -> Iterator[Hub]:
    """Serves until the block ends."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    with serving(server):
        yield hub


def use_hub(hub: Hub, patch: pytest.MonkeyPatch, cache: Path, token: str = "") -> None:
    """Let huggingface_hub talk to the stand-in and to nobody else, with a cache of its own."""
    from huggingface_hub import HfFileSystem, constants

    from infra import hub as ours

    patch.setattr(constants, "ENDPOINT", hub.url)
    template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
    patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    patch.setattr(constants, "HF_HUB_OFFLINE", False)
    patch.setattr(constants, "HF_HUB_CACHE", str(cache))
    patch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    patch.setattr(constants, "HF_TOKEN_PATH", str(cache / "no-token"))
    patch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    patch.delenv("HF_TOKEN", raising=False)
    if token:
        patch.setenv("HF_TOKEN", token)
    HfFileSystem.clear_instance_cache()
    ours._pinned.cache_clear()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None: ...

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = self._chunks()
        self.hub.requests.append(f"{self.command} {path}")
        if self.hub.is_down:
            self._json({"error": "down"}, 503)
            return
        for pattern, act in _ROUTES:
            if found := re.fullmatch(pattern, path):
                act(self, body, **found.groupdict())
                return
        self._json({"error": f"no such path {path}"}, 404)

    def _chunks(self) -> bytes:
        parts: list[bytes] = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _json(self, content: Any, status: int = 200, **headers: str) -> None:
        self._send(json.dumps(content).encode(), status, **headers)

    def _send(self, data: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    @property
    def _is_known(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def _repo(self, repo: str) -> Repo | None:
        """The repository, if this caller may see it; else the hub's own way of refusing."""
        found = self.hub.repos.get(repo)
        if found is None or (found.is_private and not self._is_known):
            self._json({"error": "Repository not found"}, 404, X_Error_Code="RepoNotFound")
            return None
        if found.is_gated and not self._is_known:
            self._json({"error": "gated"}, 403, X_Error_Code="GatedRepo")
            return None
        return found

    def _content(self, repo: str, revision: str) -> tuple[str, dict[str, bytes]] | None:
        found = self._repo(repo)
        if found is None:
            return None
        commit = found.resolved(revision)
        if commit is None:
            self._json({"error": "no revision"}, 404, X_Error_Code="RevisionNotFound")
            return None
        return commit, found.commits.get(commit, {})

    def info(self, body: bytes, repo: str, revision: str = "main") -> None:
        if found := self._content(repo, revision):
            commit, files = found
            self._json({"id": repo, "sha": commit, "siblings": [{"rfilename": f} for f in files]})

    def tree(self, body: bytes, repo: str, revision: str) -> None:
        if found := self._content(repo, revision):
            self._json([_entry(path, data) for path, data in found[1].items()])

    def paths(self, body: bytes, repo: str, revision: str) -> None:
        if found := self._content(repo, revision):
            asked = json.loads(body)["paths"]
            self._json([_entry(p, d) for p, d in found[1].items() if p in asked])

    def resolve(self, body: bytes, repo: str, revision: str, file: str) -> None:
        found = self._content(repo, revision)
        if found is None:
            return
        commit, files = found
        if file not in files:
            self._json({"error": "no file"}, 404, X_Error_Code="EntryNotFound")
            return
        data, status = files[file], 200
        told = {"X_Repo_Commit": commit, "ETag": f'"{hashlib.sha1(data).hexdigest()}"'}
        if asked := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or ""):
            first, last = int(asked[1]), int(asked[2] or len(data) - 1)
            told["Content_Range"] = f"bytes {first}-{last}/{len(data)}"
            data, status = data[first : last + 1], 206
        self._send(data, status, **told)

    def create(self, body: bytes) -> None:
        if not self._is_known:
            self._json({"error": "Invalid credentials"}, 401)
            return
        asked = json.loads(body)
        repo = f"{asked['organization']}/{asked['name']}"
        if repo in self.hub.repos:
            self._json({"error": "exists", "url": f"{self.hub.url}/{repo}"}, 409)
            return
        self.hub.repos[repo] = Repo(
            is_private=asked.get("visibility") == "private" or bool(asked.get("private"))
        )
        self._json({"url": f"{self.hub.url}/{repo}", "id": repo, "name": repo})

    def validate(self, body: bytes) -> None:
        self._json({"errors": [], "warnings": []})

    def preupload(self, body: bytes, repo: str, revision: str) -> None:
        if self._repo(repo) is None:
            return
        paths = [file["path"] for file in json.loads(body)["files"]]
        modes = {p: "lfs" if p.endswith(".safetensors") else "regular" for p in paths}
        told = [{"path": p, "uploadMode": m, "shouldIgnore": False} for p, m in modes.items()]
        self._json({"files": told})

    def lfs(self, body: bytes, repo: str) -> None:
        objects = [
            {
                "oid": each["oid"],
                "size": each["size"],
                "actions": {"upload": {"href": f"{self.hub.url}/upload/{each['oid']}"}},
            }
            for each in json.loads(body)["objects"]
        ]
        self._json({"transfer": "basic", "objects": objects})

    def upload(self, body: bytes, oid: str) -> None:
        assert hashlib.sha256(body).hexdigest() == oid
        self.hub.uploads[oid] = body
        self._json({})

    def commit(self, body: bytes, repo: str, revision: str) -> None:
        found = self._repo(repo)
        if found is None:
            return
        files: dict[str, bytes] = {}
        deleted: list[str] = []
        message = ""
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "header":
                message = value["summary"]
            elif line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.hub.uploads[value["oid"]]
            elif line["key"] == "deletedFile":
                deleted.append(value["path"])
        commit = found.commit(files, message, deleted)
        url = f"{self.hub.url}/{repo}/commit/{commit}"
        self._json({"success": True, "commitOid": commit, "commitUrl": url, "hookOutput": ""})


def _entry(path: str, data: bytes) -> dict[str, Any]:
    oid = hashlib.sha1(data).hexdigest()
    return {"type": "file", "path": path, "size": len(data), "oid": oid}


_ROUTES = (
    (rf"/api/models{_REPO}", _Handler.info),
    (rf"/api/models{_REPO}/revision/(?P<revision>[^/]+)", _Handler.info),
    (rf"/api/models{_REPO}/tree/(?P<revision>[^/]+)/?", _Handler.tree),
    (rf"/api/models{_REPO}/paths-info/(?P<revision>[^/]+)", _Handler.paths),
    (rf"/api/models{_REPO}/preupload/(?P<revision>[^/]+)", _Handler.preupload),
    (rf"/api/models{_REPO}/commit/(?P<revision>[^/]+)", _Handler.commit),
    (rf"{_REPO}/resolve/(?P<revision>[^/]+)/(?P<file>.+)", _Handler.resolve),
    (rf"{_REPO}\.git/info/lfs/objects/batch", _Handler.lfs),
    (r"/upload/(?P<oid>\w+)", _Handler.upload),
    (r"/api/repos/create", _Handler.create),
    (r"/api/validate-yaml", _Handler.validate),
)
