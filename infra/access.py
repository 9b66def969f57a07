"""Where our servers listen, and the key that they ask for.

By default everything listens on this machine's loopback; TRIBUTARY_HOST names another address.
Every server asks for one key, on loopback too: other users of the machine, and pages that a browser
shows, reach that as well. The key is in a file of the home that only its owner may read. Servers
and clients read that file: the key is in no argument and no record.
"""

from __future__ import annotations

import base64
import ipaddress
import os
import re
import secrets
import socket
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote, urlsplit

from infra.errors import InputError
from infra.home import home, own_folder, read_own_file, write_own_file

HOST_VARIABLE = "TRIBUTARY_HOST"
"""the IPv4 address that servers listen on; 0.0.0.0 is every one of this machine"""
ADDRESS_VARIABLE = "TRIBUTARY_ADDRESS"
"""where other hosts reach this one, if TRIBUTARY_HOST is 0.0.0.0: one of its IPv4 addresses"""
KEY_VARIABLE = "TRIBUTARY_KEY"
"""`tributary up` takes the key from here, else it makes one"""
JOINED_HOST_VARIABLE = "TRIBUTARY_JOINED_HOST"
"""the same as TRIBUTARY_HOST on a host that joined another one's stack: set there only, it stands
above what a job's environment, which is made on the head, says"""
LOOPBACK = "127.0.0.1"
USER = "tributary"
"""the user name for servers that need one in addition to the key"""
_EVERY_ADDRESS = "0.0.0.0"
_KEY = re.compile(r"[A-Za-z0-9._~-]{16,256}")


def listening_host() -> str:
    """Return the address where servers started from here are to listen.

    Raises InputError for what is no IPv4 address of this machine.
    """
    host = os.environ.get(JOINED_HOST_VARIABLE) or os.environ.get(HOST_VARIABLE) or LOOPBACK
    _require_own(HOST_VARIABLE, host, "one, or to 0.0.0.0 for all, or unset it for loopback only")
    return host


def named_address(host: str) -> str:
    """Return what other hosts are to call this one, whose servers listen on `host`; empty: that.

    Raises InputError for what is no IPv4 address of this machine, or of no use.
    """
    address = os.environ.get(ADDRESS_VARIABLE, "")
    if not address or host != _EVERY_ADDRESS:
        return ""
    _require_own(ADDRESS_VARIABLE, address, "one that other hosts reach, or unset it")
    if address == _EVERY_ADDRESS or is_loopback(address):
        raise InputError(
            f"{ADDRESS_VARIABLE} is {address}, which no other host reaches: set it to an address"
            " that others reach, or unset it"
        )
    return address


def _require_own(variable: str, address: str, allowed: str) -> None:
    """Raises InputError for what is no IPv4 address of this machine."""
    try:
        ipaddress.IPv4Address(address)
        with socket.socket() as probe:
            probe.bind((address, 0))
    except (ValueError, OSError) as error:
        raise InputError(
            f"{variable} is `{address}`, which is not an IPv4 address of this machine ({error}): "
            f"set it to {allowed}"
        ) from None


def require_listenable(host: str) -> None:
    """Raises InputError for a name or an address at which no server can listen on this machine."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.bind(address)
    except OSError as error:
        raise InputError(
            f"host {host}: is no address of this machine ({error}); give one of its own, 0.0.0.0"
            f" for all, or {LOOPBACK} for programs of this machine alone"
        ) from None


def is_loopback(host: str) -> bool:
    return ipaddress.IPv4Address(host).is_loopback


def is_here(host: str) -> bool:
    """Return whether a name or an address that a person wrote is this machine's loopback."""
    try:
        return is_loopback(host)
    except ValueError:
        return host in ("localhost", "::1")


def reachable(host: str) -> str:
    """Return an address at which a server that listens on `host` is reached: by other hosts too, if
    it is not loopback."""
    return os.environ.get(ADDRESS_VARIABLE) or LOOPBACK if host == _EVERY_ADDRESS else host


def key_path() -> Path:
    return home() / "key"


def key() -> str:
    """The key of this home's servers; empty before there is one.

    Raises InputError when others than its owner may read it.
    """
    path = key_path()
    try:
        with path.open() as file:
            mode, found = os.fstat(file.fileno()).st_mode, file.read().strip()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise InputError(f"the key in {path} cannot be read: {error}") from error
    if mode & 0o077:
        raise InputError(f"others may read the key in {path}: chmod 600 {path}")
    return found


def required_key() -> str:
    """Return what a server that starts now must ask for; made if this home has none yet.

    Raises InputError for a key that others may read, that is too weak, or that is not the one that
    TRIBUTARY_KEY says.
    """
    given = given_key()
    if not key():
        _write(given or secrets.token_urlsafe(32), replace=False)
    found = key()
    if given and given != found:
        raise InputError(
            f"{KEY_VARIABLE} is not the key in {key_path()}: unset it, or have the home take it"
            " with `tributary down`, then `tributary up`"
        )
    return found


def require_shared_key() -> None:
    """Raises InputError where this home would make a key of its own, which other hosts lack."""
    if not key() and not given_key():
        raise InputError(
            f"servers on several hosts need one key, and there is none in {key_path()}: set"
            f" {KEY_VARIABLE} to the same 16 to 256 letters, digits or `._~-` on each host"
        )


def prepare_key(*, in_use: bool) -> None:
    """Have the key that a stack needs: the one that TRIBUTARY_KEY says, else what this home has.

    Raises InputError for a key that is too weak, or another than what runs uses.
    """
    given, known = given_key(), key()
    if in_use and given and known and given != known:
        raise InputError(
            f"the stack that runs in {home()} has another key than {KEY_VARIABLE}: end it with "
            f"`tributary down` first, or unset {KEY_VARIABLE}"
        )
    if in_use and not given and not known:
        raise InputError(
            f"the key of the stack that runs in {home()} is missing in {key_path()}: end the stack "
            "with `tributary down`, and `tributary up` creates another"
        )
    if given and given != known:
        _write(given)
    required_key()


def given_key() -> str:
    """Return what TRIBUTARY_KEY says; empty if it is unset. Raises InputError for one that is too
    weak.
    """
    given = os.environ.get(KEY_VARIABLE, "")
    if given and not _KEY.fullmatch(given):
        raise InputError(
            f"{KEY_VARIABLE} must be 16 to 256 letters, digits or any of `._~-`. Unset it, and "
            "`tributary up` creates a key"
        )
    return given


def take_key(head: str) -> None:
    """Have the key of the stack whose head is at `head`, to join it.

    Raises InputError when none is given, or one that no stack has.
    """
    given = os.environ.get(KEY_VARIABLE, "") or key()
    if not _KEY.fullmatch(given):
        raise InputError(
            f"joining {head} needs its key: set {KEY_VARIABLE} to what the file `key` in that"
            " host's home says"
        )
    if given != key():
        _write(given)


def basic() -> dict[str, str]:
    """The header for Prefect and MLflow, which want a user too; none before there is a key."""
    found = key()
    return {"Authorization": f"Basic {basic_token(found)}"} if found else {}


def basic_token(key: str) -> str:
    """Return what basic authentication sends for our user with this key."""
    return base64.b64encode(f"{USER}:{key}".encode()).decode()


def bearer() -> dict[str, str]:
    """The header for Ray, SGLang and its router; none before there is a key."""
    found = key()
    return {"Authorization": f"Bearer {found}"} if found else {}


def _write(key: str, *, replace: bool = True) -> None:
    """Never readable to others, not even for a moment. Without `replace` a key that another process
    wrote meanwhile stays."""
    draft = key_path().with_suffix(f".{secrets.token_hex(8)}")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(key)
    if replace:
        draft.replace(key_path())
        return
    with suppress(FileExistsError):
        key_path().hardlink_to(draft)
    draft.unlink()


EXTERNAL_KEY_VARIABLE = "EXTERNAL_FLEET_KEY"
"""the environment variable with the key of servers of others"""


def external_key() -> str:
    """The key of servers of others; empty if they ask for none. Raises InputError for one that no
    header can hold."""
    return sendable(os.environ.get(EXTERNAL_KEY_VARIABLE, ""), EXTERNAL_KEY_VARIABLE)


def sendable(text: str, named: str, where: str = "") -> str:
    """The text, as that of a header. Raises InputError where none can hold it: the library that
    sends it would write it, which may be a secret, into its error."""
    if all(" " <= sign <= "~" for sign in text) and text == text.strip():
        return text
    named = named if named != text else "its text"
    raise InputError(
        f"{where}{named} begins or ends with a blank or a line end, or holds a character that no"
        " header has; set it anew, without that"
    )


def note_key(url: str, found: str) -> None:
    """Requests to the server at `url`, of any process of this home, carry this key; none if it is
    empty. Until this process forgets it, or ends."""
    import psutil  # an eighth of what a command takes to print its help

    folder = own_folder(_folder(url))
    for other in folder.iterdir():
        if not psutil.pid_exists(int(other.name.strip(".").partition(".")[0])):
            other.unlink(missing_ok=True)
    write_own_file(folder / f"{os.getpid()}.key", found)


def forget_key(url: str) -> None:
    (_folder(url) / f"{os.getpid()}.key").unlink(missing_ok=True)


def key_of(url: str) -> str:
    """Return what the server at `url` asks for; empty if it asks for nothing."""
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
