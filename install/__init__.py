"""Installs Tributary on a machine that has Python 3.9 or newer and nothing else.

Only the standard library, and only what Python 3.9 knows: nothing of ours is installed yet.
"""
