"""tfkit: Transformers from recipes.

    recipe = tfkit.load_recipe("bert-base")
    model = tfkit.build(recipe)
    run = tfkit.train(recipe, out="runs/x")

Names are imported on first use, which keeps `import tfkit` fast; for type checkers, `__init__.pyi` declares where they
come from.
"""

import importlib

__version__ = "0.1.0"

_ROOMS = {
    "tfkit.api": ("build", "part", "parts"),
    "tfkit.core.component": ("Component", "Config", "Shape"),
    "tfkit.core.context": ("Context",),
    "tfkit.core.errors": ("DataError", "RecipeError", "RunError", "TfkitError", "UsageError"),
    "tfkit.core.options": ("Slot",),
    "tfkit.core.registry": ("register",),
    "tfkit.interop.hub": ("push",),
    "tfkit.interop.huggingface.pretrained": ("as_pretrained",),
    "tfkit.models.alone": ("context",),
    "tfkit.plain.code": ("code",),
    "tfkit.recipe.load": ("Recipe", "load_recipe"),
    "tfkit.studies.study": ("study",),
    "tfkit.run": ("Run", "evaluate", "load_run", "save", "train"),
}
_HOMES = {name: room for room, names in _ROOMS.items() for name in names}
__all__ = sorted(["__version__", *_HOMES])


def __getattr__(name: str) -> object:
    """Import `name` from its module on first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'tfkit' has no attribute '{name}'")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
