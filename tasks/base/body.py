"""`base`: makes a small random model, or imports a folder."""

from __future__ import annotations

from curricula.built_in_curricula import build
from engines.draws import draw_examples
from engines.types import Demonstration
from infra.hooks import resolve
from tasks.base.spec import IMPORTER, WRITER, BaseSpec
from tasks.stage import StageContext


async def run(spec: BaseSpec, context: StageContext) -> dict[str, float]:
    """Fill `context.out` with an HF folder. Raises InputError."""
    settings = spec.settings
    if settings.folder is not None:
        return resolve("base", IMPORTER, {})(settings.folder, context.out, settings.template)
    assert spec.settings.random is not None
    texts = _demonstrations(spec, spec.settings.random.tokenizer_texts)
    write = resolve("base", WRITER, {})
    return write(context.out, spec.settings.random, texts, spec.seed)


def _demonstrations(spec: BaseSpec, count: int) -> list[Demonstration]:
    built = [build(c.name, c.options, c.mcp) for c in spec.curricula]
    return [d for curriculum in built for d in draw_examples(curriculum, count, spec.seed)]
