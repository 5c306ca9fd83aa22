"""The model card of an export: usage, the run's card, and the architecture as a recipe."""

from __future__ import annotations

import yaml

from tfkit.core.component import spell
from tfkit.interop.local_paths import LocalPaths
from tfkit.recipe.text.source import LANGUAGE
from tfkit.recipe.views.resolved import model_values
from tfkit.run import Run
from tfkit.training.card import as_code, escaped, sections, signed
from tfkit.training.folder import RunFolder


def card(run: Run, paths: LocalPaths, loader: str, own_code: bool, sentences: bool = False) -> str:
    """Return the card of a run that transformers loads with the class `loader`. User text is escaped.

    `sentences` is true if sentence-transformers can also load the folder.
    """
    trusted = ", trust_remote_code=True" * own_code
    recipe = {"tfkit": LANGUAGE, "model": spell(model_values(run.blueprint))}
    library = "sentence-transformers" if sentences else "transformers"
    use = f'import transformers\n\nmodel = transformers.{loader}.from_pretrained("."{trusted})'
    if sentences:
        use = f'from sentence_transformers import SentenceTransformer\n\nmodel = SentenceTransformer("."{trusted})'
    cost, *about = run.summary
    lines = [
        *("---", f"library_name: {library}", "tags: [tfkit]", "---", ""),
        *(f"# {escaped(run.recipe.name)}", "", cost, ""),
        *as_code("\n".join(about)),
        *("## Use", "", *as_code(use)),
        *sections(RunFolder(run.folder)),
        *("## Check", "", "The largest difference from the run, layer by layer:", ""),
        *as_code(f"tfkit verify RUN --against .{' --trust' * own_code}"),
        *("## Recipe", "", "The architecture as a tfkit recipe, with every value spelled out:", ""),
        *as_code(yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True, width=110)),
    ]
    return signed(list(map(paths.out_of, lines)))
