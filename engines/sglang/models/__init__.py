"""Our families' model classes, for SGLang's hook for model packages.

Importing these instead of all that SGLang has saves seconds at every start.
"""
