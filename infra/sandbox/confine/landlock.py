"""Landlock: which files the process may open at all (kernel 5.13 and later)."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable

from infra.sandbox.confine.libc import syscall

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG = 1
_RULE_PATH_BENEATH = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE = 1 << 14
_READ = _READ_FILE | _READ_DIR
_READ_EXECUTE = _READ | _EXECUTE
# rights that exist, by ABI version: 1 has 13, each later one here adds one
_RIGHTS_OF_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | 1 << 15
_NETWORK = 0b11
"""bind and connect over TCP, from ABI 4"""
_SCOPES = 0b11
"""abstract sockets and signals beyond the sandbox, from ABI 6"""


class _Ruleset(ctypes.Structure):
    _fields_ = (
        ("files", ctypes.c_uint64),
        ("network", ctypes.c_uint64),
        ("scopes", ctypes.c_uint64),
    )


class _PathRule(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed", ctypes.c_uint64), ("descriptor", ctypes.c_int32))


def abi() -> int:
    """The kernel's Landlock version; raises OSError where there is none."""
    return syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION_FLAG))


def restrict(readable: Iterable[str], writable: Iterable[str]) -> None:
    """Let only `readable` trees be read and only `writable` ones be changed from now on.

    Needs no-new-privileges. Raises OSError where the kernel has no Landlock.
    """
    version = abi()
    rights = max(mask for known, mask in _RIGHTS_OF_ABI.items() if known <= version)
    attributes = _Ruleset(rights, _NETWORK if version >= 4 else 0, _SCOPES if version >= 6 else 0)
    # the kernel refuses attributes longer than it knows unless the rest is zero, as it is here
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    ruleset = syscall(_CREATE_RULESET, ctypes.byref(attributes), size, ctypes.c_uint32(0))
    try:
        for path in readable:
            _allow(ruleset, path, _READ_EXECUTE & rights)
        for path in writable:
            _allow(ruleset, path, rights & ~_EXECUTE)
        syscall(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not os.path.isdir(path):
            rights &= _FILE_RIGHTS
        rule = _PathRule(rights, descriptor)
        syscall(
            _ADD_RULE,
            ctypes.c_int(ruleset),
            ctypes.c_int(_RULE_PATH_BENEATH),
            ctypes.byref(rule),
            ctypes.c_uint32(0),
        )
    finally:
        os.close(descriptor)
