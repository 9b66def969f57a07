"""Addresses with secrets in them: found, and shown without."""

from __future__ import annotations

import re

_HELD = re.compile(
    r"(\b[a-z][a-z0-9+.-]*://[^/\s:@]+:)[^/\s@]+(?=@)"
    r"|\b((?i:AccountKey|SharedAccessKey|SharedAccessSignature)=)[^;\s\"'`]{8,}"
    r"|([?&;](?i:sig|signature|x-(?:amz|goog)-(?:signature|security-token|credential))=)"
    r"[^&;\s\"'`]{8,}"
    r"|([?&](?i:(?:\w+[_-])?(?:token|key|secret|password|passwd))=)(?!\$)[^&\s\"'`]{8,}"
)
"""a password before the host, an account's key or signature, and the like among the parameters"""


def masked(text: str) -> str:
    """The text with `***` in place of the secrets of addresses."""
    return _HELD.sub(lambda found: f"{next(filter(None, found.groups()))}***", text)


def holds_secret(text: str) -> bool:
    """Whether an address with a secret stands in it."""
    return _HELD.search(text) is not None
