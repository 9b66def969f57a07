"""Namespaces: a process without network, other processes, users or the host's files in sight.

The new root is a tmpfs that holds read-only views of the readable trees and one empty folder.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Generator, Sequence

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
NOBODY = 65534
"""who untrusted code is: inside, and where root starts it on the host as well"""
MAPPED_BY_ROOT = f"0 0 1\n{NOBODY} {NOBODY} 1\n"
"""for the setup, which may read what root alone can, and for what runs after it"""
BLOCK = 4096
"""bytes that the smallest file counts for"""
_SPARE_NODES = 16
"""for the folder itself"""


def leave() -> None:
    """Moves this process into new namespaces; only its next child is in the new PID namespace.

    Where root calls it, `become_nobody` has to follow: files of `/proc/sys` and devices know root
    by its number outside. Raises OSError where the kernel or a container's policy forbids it.
    """
    user, group = os.geteuid(), os.getegid()
    everything = _NEW_USERS | _NEW_MOUNTS | _NEW_PIDS | _NEW_NETWORK | _NEW_IPC | _NEW_NAMES
    if user == 0:
        with _mapped_from_outside():
            unshare(everything)
        return
    unshare(everything)
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{NOBODY} {user} 1")
    _write("/proc/self/gid_map", f"{NOBODY} {group} 1")


def become_nobody() -> None:
    """Gives up root for good, here and on the host; nothing for any other user."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)


@contextlib.contextmanager
def _mapped_from_outside() -> Generator[None]:
    """A process that stays outside gives the new namespace its users: only it may name two."""
    goes, waits = os.pipe()
    me, child = os.getpid(), os.fork()
    if child == 0:
        os.close(waits)
        try:
            if os.read(goes, 1):
                for kind in ("uid", "gid"):
                    _write(f"/proc/{me}/{kind}_map", MAPPED_BY_ROOT)
        except OSError as error:
            os._exit(min(error.errno or errno.EPERM, 127))
        os._exit(0)
    os.close(goes)
    try:
        yield
        os.write(waits, b"1")
    finally:
        os.close(waits)
        _, status = os.waitpid(child, 0)
    if failed := os.waitstatus_to_exitcode(status):
        raise OSError(abs(failed), "a user namespace in which root is nobody on this machine")


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
    room += f",uid={NOBODY},gid={NOBODY}"
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
