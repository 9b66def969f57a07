"""Reading and writing the weights of a HF model folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from engines.families.common.family import Classifier, ModelShape
from engines.families.common.registry import family_of
from engines.families.common.tensors import INDEX, SINGLE
from engines.megatron.spec import Lora
from infra.data_files.heads import other_kind_of
from infra.errors import InputError

_NOT_COPIED = (".safetensors", ".parquet", ".jsonl")
"""weights, which are written anew, and what the stage that made the source recorded beside them"""


class HfWeights:
    """The tensors of a folder's safetensors files, read one at a time.

    Raises InputError that names the folder and the file or tensor it lacks.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._open: dict[str, Any] = {}
        self.file_of = self._files()

    def require(self, names: Iterable[str]) -> None:
        if lacking := [name for name in names if name not in self.file_of]:
            raise InputError(
                f"{self.folder} lacks the tensor {lacking[0]}: the model is not complete"
            )

    def read(self, name: str) -> Tensor:
        """Return a whole tensor on the CPU, in the type it is stored in."""
        self.require([name])
        return self._opened(self.file_of[name]).get_tensor(name)

    def _opened(self, file: str) -> Any:
        if file not in self._open:
            try:
                self._open[file] = safe_open(self.folder / file, framework="pt")
            except (OSError, SafetensorError) as error:
                said = other_kind_of(self.folder / file, "safetensors") or error
                raise InputError(f"cannot read {self.folder / file}: {said}") from error
        return self._open[file]

    def _files(self) -> dict[str, str]:
        index = self.folder / INDEX
        if index.exists():
            return dict(json.loads(index.read_text())["weight_map"])
        if not (self.folder / SINGLE).exists():
            raise InputError(f"{self.folder} has neither {SINGLE} nor {INDEX}: no weights to load")
        return dict.fromkeys(self._opened(SINGLE).keys(), SINGLE)


def write_head_folder(
    folder: Path,
    tensors: Mapping[str, Tensor],
    source: HfWeights,
    kind: Classifier,
    label: str,
    *,
    whole: bool = False,
) -> None:
    """Write `tensors` of a model with a value head as a classifier of one label, of `source`'s
    family.

    The trunk is stored in the source's files and types, the value head beside its last tensors in
    float32; `config.json` says what it is, so that transformers reads it, and names no class where
    transformers has none. `whole`: with the source's tokenizer and chat template.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if whole:
        _copy_beside(source.folder, folder)
    last = sorted(set(source.file_of.values()))[-1]
    file_of = {name: source.file_of.get(name, last) for name in sorted(tensors)}
    for file in sorted(set(file_of.values())):
        named = {n: _stored(n, tensors[n], source) for n, f in file_of.items() if f == file}
        save_file(named, folder / file, metadata={"format": "pt"})
    (folder / INDEX).unlink(missing_ok=True)
    if set(file_of.values()) != {SINGLE}:
        (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": file_of}, indent=2))
    config = json.loads((source.folder / "config.json").read_text())
    name = family_of(config).classifier(kind)
    config |= {"architectures": [name] if name else None}
    config |= {"id2label": {"0": label}, "label2id": {label: 0}}
    (folder / "config.json").write_text(json.dumps(config, indent=2))


def _stored(name: str, tensor: Tensor, source: HfWeights) -> Tensor:
    stored = tensor.to(source.read(name).dtype) if name in source.file_of else tensor.float()
    return stored.contiguous()


def write_folder(
    folder: Path, tensors: Mapping[str, Tensor], source: HfWeights, shape: ModelShape
) -> None:
    """Write `tensors` (by HF name, on the CPU) as `source` stores its own, beside the model's other
    files.

    Same file names, same tensor types: what was not trained comes back bit for bit, such as tables
    of rotary angles that some models store, or layers for multi-token prediction. Raises
    InputError if a tensor of the source is missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    by_file: dict[str, dict[str, Tensor]] = {}
    for name, file in source.file_of.items():
        kept = source.read(name)
        if name not in tensors and not shape.is_kept(name):
            raise InputError(f"{source.folder} holds {name}, which the trained model does not have")
        stored = tensors.get(name, kept).to(kept.dtype)
        by_file.setdefault(file, {})[name] = stored.contiguous()
    for file, named in by_file.items():
        save_file(named, folder / file, metadata={"format": "pt"})
    _copy_beside(source.folder, folder)


def write_adapters(folder: Path, tensors: Mapping[str, Tensor], lora: Lora) -> None:
    """Write a folder that `peft` reads beside the model that was adapted."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(dict(tensors), folder / "adapter_model.safetensors", metadata={"format": "pt"})
    modules = {name.removesuffix(".lora_A.weight") for name in tensors if ".lora_A." in name}
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": None,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "target_modules": sorted({module.rpartition(".")[2] for module in modules}),
        "bias": "none",
        "inference_mode": True,
    }
    if beside := _beside_experts(modules):
        config["target_parameters"] = beside
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2))


def _beside_experts(modules: Iterable[str]) -> list[str]:
    """Name a mixture's weights of the dense feed-forwards and the shared experts: `peft` takes
    their modules' names for the routed experts' alone, and leaves them out without a word."""
    in_layer = [module.partition(".layers.")[2].partition(".")[2] for module in modules]
    routed = [name for name in in_layer if name.startswith("mlp.experts.")]
    others = {name for name in in_layer if name.startswith("mlp.")}.difference(routed)
    return sorted(f"{name}.weight" for name in others) if routed else []


def _copy_beside(source: Path, folder: Path) -> None:
    """Copy what a model's folder holds beside its weights."""
    for path in sorted(source.iterdir()):
        if path.is_file() and path.suffix not in _NOT_COPIED:
            shutil.copyfile(path, folder / path.name)
