"""Placeholders for modules that SGLang imports and a host without CUDA does not have.

The finder sits behind Python's regular ones, so a module that is installed is always the real one.
No code of a placeholder runs during text generation: `triton` and `torchvision` only have to
survive import, decoration and subclassing; the kernels of `sgl_kernel` raise when called.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NoReturn

_IMPORT_ONLY = ("triton", "torchvision")
_KERNELS = "sgl_kernel"
# What SGLang's CPU platform imports by name at start; a longer list would make SGLang believe
# that kernels exist which it otherwise replaces by its own torch code.
_KERNEL_NAMES = (
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "rotate_input_ids_cpu",
    "verify_tree_greedy_cpu",
)


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _decorate(function: Any = None, *_args: Any, **_kwargs: Any) -> Any:
    """`@jit`, `@jit(...)` and `@autotune(configs)` all hand the function back."""
    return function if callable(function) else _decorate


class _PlaceholderType(type):
    def __getattr__(cls, name: str) -> Any:
        if _is_dunder(name):
            raise AttributeError(name)
        return Placeholder


class Placeholder(metaclass=_PlaceholderType):
    """Stands for any class of a module that is only imported: it may be created, called, indexed
    and subclassed."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None: ...

    def __class_getitem__(cls, _item: Any) -> type[Placeholder]:
        return cls

    def __getattr__(self, name: str) -> Any:
        if _is_dunder(name):
            raise AttributeError(name)
        return Placeholder

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _decorate(*args, **kwargs)


class _ImportOnly(ModuleType):
    """A package of which every capitalised name is a class and every other a subpackage."""

    __version__ = "0.0.0"

    def __getattr__(self, name: str) -> Any:
        if _is_dunder(name):
            raise AttributeError(name)
        if name[0].isupper():
            value: Any = type(name, (Placeholder,), {"__module__": self.__name__})
        else:
            value = importlib.import_module(f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _decorate(*args, **kwargs)


def _missing_kernel(name: str) -> Callable[..., NoReturn]:
    def kernel(*_args: Any, **_kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name} needs the real sgl-kernel package")

    return kernel


class AbsentFinder:
    """Finds placeholders for `roots` and everything below them; also loads them."""

    def __init__(self, roots: Sequence[str]) -> None:
        self.roots = tuple(roots)

    def find_spec(
        self, fullname: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        root = fullname.partition(".")[0]
        if root not in self.roots or fullname.startswith(f"{_KERNELS}."):
            return None
        spec = importlib.machinery.ModuleSpec(fullname, self, is_package=root != _KERNELS)  # pyrefly: ignore[bad-argument-type]
        spec.origin = "placeholder of tributary"
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return ModuleType(spec.name) if spec.name == _KERNELS else _ImportOnly(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ == _KERNELS:
            for name in _KERNEL_NAMES:
                setattr(module, name, _missing_kernel(name))


def install() -> AbsentFinder:
    """Let imports of absent modules find stand-ins; returns the finder, with the roots it serves.

    Call before importing SGLang, on hosts without CUDA only. Calling it again changes nothing.
    """
    for finder in sys.meta_path:
        if isinstance(finder, AbsentFinder):
            return finder
    missing = [name for name in (*_IMPORT_ONLY, _KERNELS) if importlib.util.find_spec(name) is None]
    if "triton" in missing:
        # torch caches its answer: let it learn that triton is absent before a stand-in exists.
        from torch.utils._triton import has_triton_package

        has_triton_package()
    finder = AbsentFinder(missing)
    sys.meta_path.append(finder)
    return finder
