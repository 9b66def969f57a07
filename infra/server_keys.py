"""Which key a server asks for: this home's own, or for a server of others the one noted for it.

Ranks of a trainer talk to those servers as well, in processes of their own. So each process that
uses servers of others keeps the key in a file of the home that only its owner may read, for as long
as it uses them; the key is in no argument, message or record. The key of this home is never sent to
a server of others.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote, urlsplit

import psutil

from infra.access import key
from infra.home import home
from infra.own_files import own_folder, read_own_file, write_own_file

EXTERNAL_KEY_VARIABLE = "EXTERNAL_FLEET_KEY"
"""the environment variable with the key of servers of others"""


def external_key() -> str:
    """The key of servers of others; empty if they ask for none."""
    return os.environ.get(EXTERNAL_KEY_VARIABLE, "")


def note_key(url: str, found: str) -> None:
    """Requests to the server at `url`, of any process of this home, carry this key; none if it is
    empty. Until this process forgets it, or ends."""
    folder = own_folder(_folder(url))
    for other in folder.iterdir():
        if not psutil.pid_exists(int(other.name.strip(".").partition(".")[0])):
            other.unlink(missing_ok=True)
    write_own_file(folder / f"{os.getpid()}.key", found)


def forget_key(url: str) -> None:
    (_folder(url) / f"{os.getpid()}.key").unlink(missing_ok=True)


def key_of(url: str) -> str:
    """What the server at `url` asks for; empty if it asks for nothing."""
    for noted in _folder(url).glob("*.key"):
        with suppress(FileNotFoundError):  # forgotten just now
            return read_own_file(noted)
    return key()


def bearer_of(url: str) -> dict[str, str]:
    """The header for the server at `url`; none where no key is asked for."""
    found = key_of(url)
    return {"Authorization": f"Bearer {found}"} if found else {}


def _folder(url: str) -> Path:
    return home() / "external-keys" / quote(urlsplit(url).netloc, safe="")
