"""What a storage backend's error means to a person: its cause, and what to do about it."""

from __future__ import annotations

import errno
from typing import Any

from infra.errors import StorageError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}
_CREDENTIALS = {
    "AccessDenied", "403", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken",
    "InvalidToken", "Forbidden",
}  # fmt: skip
_TAKEN = {"PreconditionFailed", "412", "ConditionalRequestConflict", "409"}


_BROKEN_OFF = {
    "HTTPClientError", "IncompleteReadError", "ClientPayloadError", "ClientConnectionError",
}  # fmt: skip
"""botocore's and aiohttp's errors of a transfer that began, by name: neither is imported here"""

_LASTING = (501, 507)
"""HTTP: not implemented, no room"""


def explain(error: Exception, action: str, place: str) -> StorageError:
    """The error that a person sees. Only a store that is busy or out of reach may be tried again by
    itself."""
    cause, advice, passes = _diagnose(error, place)
    told = StorageError(f"could not {action} {place or 'the store'}: {cause} ({error}). {advice}")
    told.retryable = passes
    return told


def is_name_taken(error: Exception) -> bool:
    """Whether a create-only write lost: servers say it in several ways."""
    if isinstance(error, FileExistsError) or _code(error) in _TAKEN:
        return True
    # Ceph answers EINVAL with this code in the text.
    return isinstance(error, OSError) and "PreconditionFailed" in str(error)


def _diagnose(error: Exception, place: str) -> tuple[str, str, bool]:
    number = error.errno if isinstance(error, OSError) else None
    remote = "://" in place and not place.startswith("file://")
    if number in _FULL:
        return "the disk or quota is full", "Free space there, or set `storage.root`", False
    if _code(error) == "RequestTimeTooSkewed":
        return "this machine's clock is wrong", "Set it, as by NTP, and run again", False
    if remote and (isinstance(error, PermissionError) or _code(error) in _CREDENTIALS):
        return (
            "the credentials were refused",
            "Check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY (or AWS_PROFILE) and the bucket's "
            "policy: the account needs the rights to read, list, write and delete",
            False,
        )
    if type(error).__name__ in {"NoCredentialsError", "PartialCredentialsError"}:
        return (
            "there are no complete credentials",
            "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or name a Prefect "
            "Secret block in `storage.credentials`",
            False,
        )
    if number in _REFUSED or isinstance(error, PermissionError):
        return (
            "the place is read-only for this user",
            "Make it writable, or set `storage.root` or TRIBUTARY_HOME to a folder that is",
            False,
        )
    if isinstance(error, NotADirectoryError | FileExistsError):
        return "a part of the path is a file", "Give a folder as `storage.root`", False
    if isinstance(error, FileNotFoundError):
        return (
            "there is no such bucket or folder",
            "Create it first, or correct `storage.root`",
            False,
        )
    if isinstance(error, ConnectionError | TimeoutError) or "Connect" in type(error).__name__:
        return (
            "the store cannot be reached",
            "Check the network and AWS_ENDPOINT_URL, then run again",
            True,
        )
    if remote and _is_busy(error):
        return (
            "the store is busy, or broke the transfer off",
            "Run again; if it persists, ask those who run the store",
            True,
        )
    if isinstance(error, ImportError | ValueError):
        return (
            "this kind of store is not supported",
            "Use file:// or s3://, or install what it needs",
            False,
        )
    return type(error).__name__, "See the cause and run again", False


def _is_busy(error: Exception) -> bool:
    """Whether the same request may succeed in a moment."""
    status = _response(error).get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    names = {kind.__name__ for kind in type(error).__mro__}
    if status in _LASTING:
        return False
    return status >= 500 or status in (409, 429) or bool(names & _BROKEN_OFF)


def _code(error: BaseException) -> str:
    """The service's own error code."""
    return str(_response(error).get("Error", {}).get("Code", ""))


def _response(error: BaseException | None) -> dict[str, Any]:
    """What the service answered, from the error or what caused it."""
    while error is not None:
        response: Any = getattr(error, "response", None)
        if isinstance(response, dict):
            return response
        error = error.__cause__
    return {}
