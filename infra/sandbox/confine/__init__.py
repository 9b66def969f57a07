"""Kernel mechanisms that confine a process, through ctypes: namespaces, Landlock, seccomp.

These files run inside the sandboxed process before the untrusted code does, under
`python -I -S`: they import the standard library only, and little of it, to start in milliseconds.
Each mechanism raises OSError where the kernel does not offer it.
"""
