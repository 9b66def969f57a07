"""Namespaces: a process without network, other processes, users or the host's files in sight.

The new root is a tmpfs that holds read-only views of the readable trees and one empty folder.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from infra.sandbox.confine.libc import mount, swap_root, unshare

WORK = "/sandbox"
"""the one folder that can be written; nothing that is shown lies below it"""
_NEW_MOUNTS, _NEW_NAMES, _NEW_IPC = 0x00020000, 0x04000000, 0x08000000
_NEW_USERS, _NEW_PIDS, _NEW_NETWORK = 0x10000000, 0x20000000, 0x40000000
_READ_ONLY, _NO_SETUID, _NO_DEVICES, _REMOUNT = 1, 2, 4, 32
_BIND, _RECURSIVE, _PRIVATE, _RELATIME = 4096, 16384, 1 << 18, 1 << 21
# flags of a mount that a user namespace may not take away, by their name in statvfs
_KEPT = {
    os.ST_NOSUID: _NO_SETUID,
    os.ST_NODEV: _NO_DEVICES,
    os.ST_NOEXEC: 8,
    os.ST_NOATIME: 1024,
    os.ST_NODIRATIME: 2048,
    os.ST_RELATIME: _RELATIME,
}
_NOBODY = 65534
BLOCK = 4096
"""bytes that the smallest file counts for"""
_SPARE_NODES = 16
"""for the folder itself"""


def leave() -> None:
    """Moves this process into new namespaces; only its next child is in the new PID namespace.

    Raises OSError where the kernel or a container's policy forbids it.
    """
    user, group = os.geteuid(), os.getegid()
    unshare(_NEW_USERS | _NEW_MOUNTS | _NEW_PIDS | _NEW_NETWORK | _NEW_IPC | _NEW_NAMES)
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{_NOBODY} {user} 1")
    _write("/proc/self/gid_map", f"{_NOBODY} {group} 1")


def replace_root(scratch: str, readable: Sequence[str], size: int) -> None:
    """A new root over the folder `scratch`, with `size` bytes of space in memory for `WORK`."""
    private = _NO_SETUID | _NO_DEVICES
    mount("none", "/", "", _PRIVATE | _RECURSIVE)
    mount("tmpfs", scratch, "tmpfs", private, "mode=755")
    for path in readable:
        _show(path, scratch + path)
    os.mkdir(scratch + WORK)
    # an empty file costs the kernel memory too, so their number is bounded with their size
    room = f"size={size},nr_inodes={size // BLOCK + _SPARE_NODES},mode=755"
    mount("tmpfs", scratch + WORK, "tmpfs", private, room)
    mount("none", scratch, "", _BIND | _REMOUNT | _READ_ONLY | private)
    swap_root(scratch)
    os.chdir(WORK)


def _show(path: str, target: str) -> None:
    """A read-only view of `path` at `target`; a symbolic link is copied as one."""
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.lexists(target):  # a tree shown before holds it already
        return
    if os.path.islink(path):
        os.symlink(os.readlink(path), target)
        return
    if os.path.isdir(path):
        os.mkdir(target)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o600))
    mount(path, target, "", _BIND | _RECURSIVE)
    present = os.statvfs(path).f_flag
    kept = sum(flag for name, flag in _KEPT.items() if present & name)
    mount("none", target, "", _BIND | _REMOUNT | _READ_ONLY | kept)


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
