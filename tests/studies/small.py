"""A study of runs that are trained in a moment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tests.training.small import LINES, RECIPE

VARIANTS = {
    "norm": {"model.layer.norm": ["layer_norm", "rms_norm"]},
    "wide": {"model.d_model": 16},
    "glu": {"model.layer.feedforward": {"type": "glu", "activation": "silu"}},
}


def study(folder: Path, name: str = "small", more: dict[str, Any] | None = None, **keys: Any) -> Path:
    """The file of a study with these keys in `study:`; `more` is laid over the recipe, section by section."""
    corpora = {}
    for split, lines in (("train", LINES), ("valid", LINES[:2])):
        (folder / f"{split}.txt").write_text("\n".join(lines) + "\n")
        corpora[split] = {"type": "text", "files": f"{split}.txt"}
    recipe: dict[str, Any] = {**RECIPE, "variants": VARIANTS, "data": {**RECIPE["data"], **corpora}}
    recipe["train"] = {**RECIPE["train"], "metrics": [], "steps": 2}
    for section, values in (more or {}).items():
        recipe[section] = {**recipe.get(section, {}), **values}
    recipe["study"] = {"compare": ["norm"], "seeds": 2, **keys}
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(recipe, sort_keys=False))
    return file
