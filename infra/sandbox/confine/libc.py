"""System calls by number, with errors raised."""

from __future__ import annotations

import ctypes
import os

_LIBC = ctypes.CDLL(None, use_errno=True)
PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
_PR_SET_SECCOMP = 22
_SECCOMP_MODE_FILTER = 2
_MNT_DETACH = 2
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_CAPSET = {"x86_64": 126, "aarch64": 91}
_CAPABILITY_VERSION_3 = 0x20080522


def syscall(number: int, *arguments: object) -> int:
    """The call's result; raises OSError."""
    result = _LIBC.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        raise _error(f"system call {number}")
    return result


def prctl(option: int, *arguments: int) -> None:
    padded = (*arguments, 0, 0, 0, 0)[:4]
    if _LIBC.prctl(option, *(ctypes.c_ulong(a) for a in padded)) < 0:
        raise _error(f"prctl {option}")


def set_seccomp_filter(program: ctypes.Structure) -> None:
    argument = ctypes.byref(program)
    if _LIBC.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), argument, 0, 0) < 0:
        raise _error("seccomp")


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    encoded = (text.encode() for text in (source, target, kind))
    if _LIBC.mount(*encoded, ctypes.c_ulong(flags), data.encode()) < 0:
        raise _error(f"mount on {target}")


def swap_root(new_root: str) -> None:
    """Makes `new_root`, a mount, the root and unmounts the old one."""
    os.chdir(new_root)
    syscall(_PIVOT_ROOT[os.uname().machine], b".", b".")
    if _LIBC.umount2(b".", _MNT_DETACH) < 0:
        raise _error("unmount the old root")
    os.chdir("/")


def unshare(flags: int) -> None:
    if _LIBC.unshare(flags) < 0:
        raise _error("unshare")


def drop_capabilities() -> None:
    """Gives up every capability for good, also those of a fresh user namespace."""
    for capability in range(64):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError:  # EINVAL: past the last; EPERM: none to drop
            break
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    syscall(_CAPSET[os.uname().machine], header, (ctypes.c_uint32 * 6)())


def _error(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")
