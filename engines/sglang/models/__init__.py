"""The families that the trainer maps, a module each, as SGLang's hook for model packages reads them.

Importing these instead of all that SGLang has saves seconds at every start.
"""
