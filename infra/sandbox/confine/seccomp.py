"""seccomp: system calls that the process may not make.

Always refused: limits and priorities of others, tracing, namespaces, mounts, kernel modules, keys,
io_uring, BPF, memory outside the address space, signals by way of a descriptor's owner, flushing
the machine's disks. Memory that is shared without a file, too: a program can give back its
addresses and keep the memory, so no limit would hold.

Refused to a single process: sockets, new processes and programs, signals to others, and changes of
a file's metadata or length, which Landlock does not see. Threads are allowed: `clone` passes
with CLONE_THREAD, and `clone3`, whose flags a filter cannot see, pretends not to exist so that libc
falls back to `clone`. Locks of files pretend to be taken: another's file would be locked too. With
processes these are left to namespaces, which have to be there; sockets are those of the four common
families and their common protocols.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Sequence

from infra.sandbox.confine.libc import set_seccomp_filter

_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_REFUSE = 0x00050000
_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06
_JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT = 0x15, 0x35, 0x45
_NUMBER_OFFSET, _ARCH_OFFSET = 0, 4
_ARGUMENT_OFFSETS = (16, 24, 32, 40)
"""low halves of the first arguments"""
_SOCKET_LEVEL = 1
_BUFFER_OPTIONS = (7, 8, 32, 33)
"""SO_SNDBUF, SO_RCVBUF, and both by force"""
_CLONE_THREAD = 0x00010000
_CLONE_NEW_NAMESPACES = 0x7E020000
_SOCKET_FAMILIES = (1, 2, 10, 16)
"""Unix, IPv4, IPv6, netlink: those of a network namespace that leads nowhere"""
_NETLINK, _ROUTES = 16, 0
_PROTOCOLS = (0, 6, 17)
"""the usual one of a family, TCP, UDP"""
_SHARED_WITHOUT_FILE = 0x21
"""MAP_SHARED and MAP_ANONYMOUS"""
_HUGE_PAGES = 0x40000
"""MAP_HUGETLB: pages that this machine keeps for others, and counts as nobody's memory"""
_LOCKS = (6, 7, 37, 38)
"""F_SETLK, F_SETLKW, and those of open files"""
_X32_BIT = 0x40000000

_REFUSED_FCNTLS = (
    *(8, 10, 15),  # F_SETOWN, F_SETSIG, F_SETOWN_EX: an owner is sent any signal that one chooses
    *(1024, 1026),  # F_SETLEASE, F_NOTIFY: an owner of the file can stop others for a minute
    *(1031, 1036, 1038),  # F_SETPIPE_SZ: the kernel's memory; hints kept with the file
)
# What asks a terminal, a pipe or a descriptor about itself. Others change a file's flags for good,
# also by a descriptor that only reads, or type into a terminal.
_ALLOWED_IOCTLS = (
    *(0x5401, 0x802C542A),  # TCGETS, TCGETS2: is it a terminal?
    *(0x540F, 0x5413),  # TIOCGPGRP, TIOCGWINSZ
    *(0x541B, 0x5421, 0x5450, 0x5451),  # FIONREAD, FIONBIO, FIONCLEX, FIOCLEX
)
_REFUSED_IOCTLS = (
    *(0x5412, 0x541C),  # TIOCSTI, TIOCLINUX
    *(0x40086602, 0x40046602, 0x401C5820),  # FS_IOC_SETFLAGS, its 32-bit form, FS_IOC_FSSETXATTR
    *(0x40087602, 0x40806685, 0x800C6613),  # FS_IOC_SETVERSION, fs-verity, encryption policies
)
_SET_PARENT_DEATH_SIGNAL = 1

_COMMON = (
    *range(425, 434),  # io_uring_setup .. fspick, among them the mount calls
    438,  # pidfd_getfd
    440,  # process_madvise
    *(442, 443, 467),  # mount_setattr, quotactl_fd, open_tree_attr
    *(447, 448, 451),  # memfd_secret, process_mrelease, cachestat
)
_COMMON_TO_ONE = (
    *(424, 434),  # pidfd_send_signal, pidfd_open
    *(452, 463, 466, 469),  # fchmodat2, setxattrat, removexattrat, file_setattr
)
# audit number; numbers of clone, fcntl, prctl, prlimit64, socket, ioctl, setsockopt, mmap, flock;
# calls that are refused always, and to a single process
_Numbers = tuple[int, int, int, int, int, int, int, int, int]
_Architecture = tuple[int, _Numbers, tuple[int, ...], tuple[int, ...]]
_ARCHITECTURES: dict[str, _Architecture] = {
    "x86_64": (
        0xC000003E,
        (56, 72, 157, 302, 41, 16, 54, 9, 73),
        (
            *(29, 30, 31, 64, 65, 66, 68, 69, 70, 71),  # System V shared memory, semaphores, queues
            *(101, 310, 311, 312),  # ptrace, process_vm_readv, process_vm_writev, kcmp
            *(103, 163, 169, 170, 171),  # syslog, acct, reboot, names
            *(155, 161, 165, 166, 167, 168),  # pivot_root, chroot, mount, umount, swap
            *(175, 176, 313, 246, 320),  # modules, kexec
            *(248, 249, 250, 321, 298, 323),  # keys, bpf, perf_event_open, userfaultfd
            *(272, 308, 303, 304),  # unshare, setns, file handles
            *(141, 142, 144, 203, 251, 314),  # priority, scheduling, affinity
            *(256, 279),  # pages of other processes
            *(240, 241, 319),  # mq_open, mq_unlink, memfd_create
            *(300, 301),  # fanotify
            *(154, 162, 179, 306),  # modify_ldt, sync, quotactl, syncfs
        ),
        (
            *(41, 42, 43, 49, 50, 288, 44, 46, 307),  # socket .. sendmmsg
            *(57, 58, 59, 322),  # fork, vfork, execve, execveat
            *(62, 129, 200, 234, 297),  # kill, rt_sigqueueinfo, tkill, tgkill, rt_tgsigqueueinfo
            *(109, 112),  # setpgid, setsid
            *(90, 91, 92, 93, 94, 260, 268),  # chmod, fchmod, chown, fchown, lchown, ..at
            *(76, 132, 235, 261, 280),  # truncate, utime, utimes, futimesat, utimensat
            *(188, 189, 190, 197, 198, 199),  # extended attributes, also by descriptor
            *(253, 254, 294),  # inotify
        ),
    ),
    "aarch64": (
        0xC00000B7,
        (220, 25, 167, 261, 198, 29, 208, 222, 32),
        (
            *range(186, 198),  # System V queues, semaphores, shared memory
            *(117, 270, 271, 272),  # ptrace, process_vm_readv, process_vm_writev, kcmp
            *(116, 89, 142, 161, 162),  # syslog, acct, reboot, names
            *(41, 51, 40, 39, 224, 225),  # pivot_root, chroot, mount, umount, swap
            *(105, 106, 273, 104, 294),  # modules, kexec
            *(217, 218, 219, 280, 241, 282),  # keys, bpf, perf_event_open, userfaultfd
            *(97, 268, 264, 265),  # unshare, setns, file handles
            *(140, 118, 119, 122, 30, 274),  # priority, scheduling, affinity
            *(238, 239),  # pages of other processes
            *(180, 181, 279),  # mq_open, mq_unlink, memfd_create
            *(262, 263),  # fanotify
            *(60, 81, 267),  # quotactl, sync, syncfs
        ),
        (
            *(198, 200, 201, 202, 203, 206, 211, 242, 269),  # socket .. sendmmsg
            *(221, 281),  # execve, execveat
            *(129, 130, 131, 138, 240),  # kill, tkill, tgkill, rt_sigqueueinfo, rt_tgsigqueueinfo
            *(154, 157),  # setpgid, setsid
            *(52, 53, 54, 55),  # fchmod, fchmodat, fchownat, fchown
            *(45, 88),  # truncate, utimensat
            *(5, 6, 7, 14, 15, 16),  # extended attributes, also by descriptor
            *(26, 27),  # inotify
        ),
    ),
}
_CLONE3 = 435


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def restrict(*, with_processes: bool = False) -> None:
    """Installs the filter for this process, its threads and its children. Needs no-new-privileges.

    Raises OSError where the kernel or the architecture is not known to it.
    """
    machine = os.uname().machine
    if machine not in _ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"no seccomp filter for {machine}")
    code = b"".join(_instructions(_ARCHITECTURES[machine], with_processes))
    set_seccomp_filter(_Program(len(code) // 8, code))


def _instructions(architecture: _Architecture, with_processes: bool) -> list[bytes]:
    """The BPF program. A jump's two numbers say how many instructions to skip if true, if false."""
    audit, numbers, refused, to_one = architecture
    clone, fcntl, prctl, prlimit, socket, ioctl, setsockopt, mmap, flock = numbers
    if not with_processes:
        refused = (*refused, *to_one, *_COMMON_TO_ONE)
    program = [
        _bpf(_LOAD, _ARCH_OFFSET),
        _bpf(_JUMP_EQUAL, audit, 1, 0),
        _bpf(_RETURN, _KILL),
        _bpf(_LOAD, _NUMBER_OFFSET),
        _bpf(_JUMP_AT_LEAST, _X32_BIT, 0, 1),
        _bpf(_RETURN, _KILL),
        _bpf(_JUMP_EQUAL, _CLONE3, 0, 1),
        _bpf(_RETURN, _REFUSE | errno.ENOSYS),
    ]
    for number in sorted({*refused, *_COMMON}):
        program += [_bpf(_JUMP_EQUAL, number, 0, 1), _bpf(_RETURN, _REFUSE | errno.EPERM)]
    for command in _REFUSED_FCNTLS:
        program += _refuse_if(fcntl, 1, (command, 0, 1))
    program += _refuse_if(prlimit, 0, (0, 1, 0))  # 0 is the caller itself
    program += _memory_of_its_own(mmap)
    if with_processes:
        for command in _REFUSED_IOCTLS:
            program += _refuse_if(ioctl, 1, (command, 0, 1))
        program += _keep_buffers(setsockopt)
        program += _only(socket, 0, _SOCKET_FAMILIES)
        program += _only(socket, 2, _PROTOCOLS)
        program += _only_routes(socket)
        return [*program, *_clone(clone, _CLONE_NEW_NAMESPACES, 0)]
    program += _only(ioctl, 1, _ALLOWED_IOCTLS)
    program += [_bpf(_JUMP_EQUAL, flock, 0, 1), _bpf(_RETURN, _REFUSE)]
    for command in _LOCKS:
        program += _refuse_if(fcntl, 1, (command, 0, 1), error=0)
    program += _refuse_if(prctl, 0, (_SET_PARENT_DEATH_SIGNAL, 0, 1))
    return [*program, *_clone(clone, _CLONE_THREAD, 1)]


def _clone(number: int, flags: int, if_set: int) -> list[bytes]:
    """The end: `clone` with any of the flags passes (`if_set` 1) or is refused (0), without them
    the other way round; all other calls pass."""
    return [
        _bpf(_JUMP_EQUAL, number, 0, 3),
        _bpf(_LOAD, _ARGUMENT_OFFSETS[0]),
        _bpf(_JUMP_ANY_BIT, flags, if_set, 1 - if_set),
        _bpf(_RETURN, _REFUSE | errno.EPERM),
        _bpf(_RETURN, _ALLOW),
    ]


def _only(number: int, argument: int, allowed: Sequence[int]) -> list[bytes]:
    """Refuse call `number` unless its argument is one of these."""
    return [
        _bpf(_JUMP_EQUAL, number, 0, len(allowed) + 3),
        _bpf(_LOAD, _ARGUMENT_OFFSETS[argument]),
        *(_bpf(_JUMP_EQUAL, value, len(allowed) - i, 0) for i, value in enumerate(allowed)),
        _bpf(_RETURN, _REFUSE | errno.EPERM),
        _bpf(_LOAD, _NUMBER_OFFSET),
    ]


def _keep_buffers(number: int) -> list[bytes]:
    """Setting the size of a socket's buffers does nothing, and says that it was done: the size is a
    hint, and programs that give one could otherwise not run."""
    names = _BUFFER_OPTIONS
    return [
        _bpf(_JUMP_EQUAL, number, 0, len(names) + 6),
        _bpf(_LOAD, _ARGUMENT_OFFSETS[1]),
        _bpf(_JUMP_EQUAL, _SOCKET_LEVEL, 0, len(names) + 1),
        _bpf(_LOAD, _ARGUMENT_OFFSETS[2]),
        *(_bpf(_JUMP_EQUAL, name, len(names) + 1 - i, 0) for i, name in enumerate(names)),
        _bpf(_LOAD, _NUMBER_OFFSET),
        _bpf(_JUMP_EQUAL, number, 1, 1),  # any: the next instruction is for buffers alone
        _bpf(_RETURN, _REFUSE),
    ]


def _memory_of_its_own(number: int) -> list[bytes]:
    """Refuse `mmap` of memory that is shared without a file, or of huge pages."""
    return [
        _bpf(_JUMP_EQUAL, number, 0, 6),
        _bpf(_LOAD, _ARGUMENT_OFFSETS[3]),
        _bpf(_JUMP_ANY_BIT, _HUGE_PAGES, 2, 0),
        _bpf(_AND, _SHARED_WITHOUT_FILE),
        _bpf(_JUMP_EQUAL, _SHARED_WITHOUT_FILE, 0, 1),
        _bpf(_RETURN, _REFUSE | errno.EPERM),
        _bpf(_LOAD, _NUMBER_OFFSET),
    ]


def _only_routes(number: int) -> list[bytes]:
    """Refuse `socket` of netlink unless it is for addresses and routes."""
    return [
        _bpf(_JUMP_EQUAL, number, 0, 6),
        _bpf(_LOAD, _ARGUMENT_OFFSETS[0]),
        _bpf(_JUMP_EQUAL, _NETLINK, 0, 3),
        _bpf(_LOAD, _ARGUMENT_OFFSETS[2]),
        _bpf(_JUMP_EQUAL, _ROUTES, 1, 0),
        _bpf(_RETURN, _REFUSE | errno.EPERM),
        _bpf(_LOAD, _NUMBER_OFFSET),
    ]


def _refuse_if(
    number: int, argument: int, test: tuple[int, int, int], error: int = errno.EPERM
) -> list[bytes]:
    """Refuse call `number` where its argument passes the test: a value, and the two jumps. Error 0
    says that it was done."""
    return [
        _bpf(_JUMP_EQUAL, number, 0, 4),
        _bpf(_LOAD, _ARGUMENT_OFFSETS[argument]),
        _bpf(_JUMP_EQUAL, *test),
        _bpf(_RETURN, _REFUSE | error),
        _bpf(_LOAD, _NUMBER_OFFSET),
    ]


def _bpf(code: int, constant: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, constant)
