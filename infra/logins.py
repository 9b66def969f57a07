"""How a browser is let in without typing the key: a link that works once, then a cookie.

`tributary up` and `tributary status` print links with a code. The page that is opened with it takes
the code back and gives the browser a cookie, which every page of this home accepts.

A browser sends cookies to all ports of a host, so a server of somebody else on this machine may see
ours. It is worth nothing there: it is not the key, it counts only from the address that logged in,
and on this machine only from connections of the user whose servers these are (`infra.peers`).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from contextlib import suppress
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from urllib.parse import urlsplit

from infra.home import home, home_tag

PATH = "/login/"
"""in front of a code, then comes the page's own path"""
LINK_SECONDS = 12 * 3600.0
"""how long a link that nobody opened works"""
_MOST_LINKS = 200
"""the oldest ones end before: whoever asks for the status each second makes many"""
COOKIE_SECONDS = 30 * 24 * 3600


def login_link(url: str) -> str:
    """The page at `url`, for a browser that does not know the key: once, and for twelve hours."""
    folder = home() / "logins"
    folder.mkdir(mode=0o700, exist_ok=True)
    _forget_old(folder)
    code = secrets.token_urlsafe(24)
    (folder / _digest(code)).touch(mode=0o600)
    parts = urlsplit(url)
    return parts._replace(path=f"{PATH}{code}{parts.path or '/'}").geturl()


def _forget_old(folder: Path) -> None:
    """Names of files say nothing of their age, and another command may remove them, too."""
    ages: dict[Path, float] = {}
    for file in folder.iterdir():
        with suppress(FileNotFoundError):
            ages[file] = time.time() - file.stat().st_mtime
    newest = sorted(ages, key=lambda file: ages[file])
    for file in newest:
        if ages[file] > LINK_SECONDS or file in newest[_MOST_LINKS:]:
            file.unlink(missing_ok=True)


def take_code(code: str) -> bool:
    """Whether this code lets somebody in; it does so once."""
    file = home() / "logins" / _digest(code)
    try:
        is_fresh = time.time() - file.stat().st_mtime <= LINK_SECONDS
        file.unlink()
    except FileNotFoundError:  # unknown, or somebody else's request took it
        return False
    return is_fresh


def new_cookie(key: str, address: str) -> str:
    """The header's value that makes a browser at this address one that has logged in. Neither
    scripts nor other sites' requests get the cookie."""
    kept = f"Path=/; Max-Age={COOKIE_SECONDS}; HttpOnly; SameSite=Strict"
    return f"{_name()}={_session(key, address)}; {kept}"


def has_cookie(header: str, key: str, address: str) -> bool:
    """Whether a request with this `Cookie` header comes from a browser that has logged in there."""
    try:
        found = SimpleCookie(header).get(_name())
    except CookieError:
        return False
    wanted = _session(key, address)
    return found is not None and hmac.compare_digest(found.value.encode(), wanted.encode())


def _name() -> str:
    """Homes of one machine share a host, so each has a cookie of its own."""
    return f"tributary-{home_tag()}"


def _session(key: str, address: str) -> str:
    """It follows from the key, which it does not reveal: another key ends all sessions."""
    return hmac.new(key.encode(), f"browser {address}".encode(), "sha256").hexdigest()


def _digest(code: str) -> str:
    return hashlib.sha256(code.encode()).hexdigest()
