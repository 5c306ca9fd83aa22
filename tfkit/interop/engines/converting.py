"""Export of a run to CTranslate2, using CTranslate2's converter for the run's transformers class."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from tfkit.core.blame import shortened
from tfkit.core.component import spell
from tfkit.core.errors import DataError, UsageError
from tfkit.core.extras import optional
from tfkit.interop.engines import MODEL
from tfkit.interop.engines.comparing import Engine, largest_difference
from tfkit.interop.greedy import boundary_tokens
from tfkit.interop.huggingface.exporting import export_model, has_tokenizer, ids_of, imported_as
from tfkit.interop.huggingface.files import CONFIG
from tfkit.interop.huggingface.known import families
from tfkit.interop.huggingface.matching import FamilyConfig, matching_family, nearest_unlike
from tfkit.interop.huggingface.reference_model import quiet
from tfkit.interop.huggingface.settings import look
from tfkit.interop.local_paths import LocalPaths
from tfkit.interop.onnx.exporting import as_float32
from tfkit.interop.onnx.graphs import writes
from tfkit.recipe.views.resolved import model_values
from tfkit.run import Run
from tfkit.storage.targets import target_folder, whole_folder
from tfkit.training.folder import RESOLVED, TOKENIZER
from tfkit.training.kept import TOKENIZER_CONFIG, TOKENS_MAP

Loaders = Mapping[str, Callable[..., Any]]  # by transformers config class

PURPOSE = "export to CTranslate2 needs"
TOKENIZER_FILES = (TOKENIZER, TOKENIZER_CONFIG, TOKENS_MAP)
LARGEST = 1e-3  # maximum difference in log-probability; a larger one means that the converter ignored a setting
EPSILONS = ("layer_norm_epsilon", "layer_norm_eps", "rms_norm_eps")
MARIAN = "MarianConfig"  # loaded as BART, because CTranslate2's Marian loader drops the last token
SPECIAL = ("bos_token", "eos_token", "unk_token")
# config attributes that the loaders require but transformers 5 removed
ASSUMED: Mapping[str, Mapping[str, bool]] = {
    "BartConfig": {"normalize_before": False},
    "MBartConfig": {"normalize_before": True},
    "PegasusConfig": {"normalize_before": True, "normalize_embedding": False},
    MARIAN: {"normalize_before": False, "normalize_embedding": False},
}


def export_ctranslate2(run: Run, target: str | Path, force: bool = False) -> Path:
    """Export `run` to the CTranslate2 folder `target` and verify its log-probabilities.

    Raises UsageError if a library is missing or CTranslate2 does not support the model, RunError if the folder must
    not be overwritten. No files are left behind on failure.
    """
    goal = target_folder(run.outside(target), "CTranslate2 model", (MODEL, CONFIG), force)
    loaders = _loaders()
    native = _taken(run, loaders)
    with tempfile.TemporaryDirectory() as beside:
        exported = export_model(run, Path(beside) / "model", family_config=native).folder
        with whole_folder(goal) as folder:
            _convert(exported, folder, native)
            for name in TOKENIZER_FILES:
                shutil.copyfile(exported / name, folder / name)
            if (run.folder / RESOLVED).is_file():
                shutil.copyfile(run.folder / RESOLVED, folder / RESOLVED)
            LocalPaths.of(run).out_of_files(folder)
            _check(run, folder, native)
    return goal.path


def _loaders() -> Loaders:
    """Return CTranslate2's loaders by transformers config class."""
    optional("ctranslate2", "engines", PURPOSE)
    optional("transformers", "hf", PURPOSE)
    loaders: Loaders = optional("ctranslate2.converters.transformers", "engines", PURPOSE)._MODEL_LOADERS
    return loaders


def _taken(run: Run, loaders: Mapping[str, object]) -> FamilyConfig:
    """Return the run's config for a transformers class that CTranslate2 supports.

    Raise UsageError with the location of each unsupported setting.
    """
    _check_writes(run)
    classes = optional("transformers", "hf", PURPOSE).CONFIG_MAPPING
    types = {name: family.model_types[0] for name, family in families().items()}
    taken = {name for name, type_ in types.items() if type_ in classes and classes[type_].__name__ in loaders}
    first, ids = imported_as(run), ids_of(run)
    supported = matching_family(run.blueprint, [name for name in first if name in taken], ids, taken)
    if supported is not None:
        return supported
    native = matching_family(run.blueprint, first, ids)
    if native is not None:
        raise UsageError(f"CTranslate2 does not support '{native.config['model_type']}' ({native.head_class})")
    nearest = nearest_unlike(run.blueprint, (), ids, taken)
    model = spell(model_values(run.blueprint))
    settings = nearest[1].settings if nearest else ()
    reported = [key for key in settings if key.endswith(".type") or f"{key.rpartition('.')[0]}.type" not in settings]
    faults = [run.recipe.fault(f"model.{key}", _lacks(model, key)) for key in reported]
    raise UsageError("\n".join(map(str, faults)) or f"{run.folder}: CTranslate2 does not support this architecture")


def _lacks(model: Mapping[str, object], key: str) -> str:
    """Return the error message for an unsupported setting."""
    value, last = look(model, key), key.rpartition(".")[2]
    if last == "type" and isinstance(value, str):
        return f"CTranslate2 does not support {value}"
    what = f"{last} {str(value).lower()}" if isinstance(value, (str, int, float)) else f"this {last}"
    return f"CTranslate2 does not support {what}"


def _check_writes(run: Run) -> None:
    """Raise UsageError for a model that does not generate text, or a run without a single tokenizer."""
    if not writes(run.model):
        raise UsageError(f"{run.folder}: does not generate text, which CTranslate2 requires; try --to onnx")
    if not has_tokenizer(run):
        raise UsageError(f"{run.folder}: has no tokenizer, which CTranslate2 requires; try --to onnx")
    if run.source_tokenizer is not run.tokenizer:
        raise UsageError(f"{run.folder}: has two tokenizers; CTranslate2's converter supports only a shared one")


def _convert(source: Path, folder: Path, native: FamilyConfig) -> None:
    """Convert `source` with CTranslate2. Raise UsageError if its converter fails."""
    transformers = optional("transformers", "hf", PURPOSE)
    with converting(native.config["model_type"]):
        model = getattr(transformers, native.head_class).from_pretrained(source, dtype="auto")
        save_engine(model, transformers.AutoTokenizer.from_pretrained(source), folder)


@contextlib.contextmanager
def converting(model_type: str) -> Iterator[None]:
    """Silence transformers during a conversion. Raise UsageError if it fails."""
    transformers = optional("transformers", "hf", PURPOSE)
    try:
        with quiet(transformers), torch.no_grad():
            yield
    except Exception as error:  # the converter raises arbitrary exceptions
        why = f"{type(error).__name__}: {shortened(error)}"
        raise UsageError(f"CTranslate2's converter rejects this '{model_type}': {why}") from None


def save_engine(model: Any, tokenizer: Any, folder: Path) -> None:
    """Convert a transformers model with CTranslate2's loader for its class. Raise any error of the loader."""
    name = type(model.config).__name__
    for key, value in ASSUMED.get(name, {}).items():
        setattr(model.config, key, value)
    spec = _loaders()["BartConfig" if name == MARIAN else name](model, tokenizer)
    _describe(spec.config, model.config, tokenizer)
    spec.validate()
    spec.optimize()
    spec.save(str(folder))


def _describe(written: Any, config: Any, tokenizer: Any) -> None:
    """Complete CTranslate2's config.json with the norm epsilon and the start token, which its loaders omit.

    CTranslate2 requires a string for each special token. Special tokens that the tokenizer lacks never occur in texts,
    so they are set to the end token.
    """
    if written.layer_norm_epsilon is None:
        epsilons = (getattr(config, key, None) for key in EPSILONS)
        written.layer_norm_epsilon = next((value for value in epsilons if value is not None), None)
    start = config.to_dict().get("decoder_start_token_id")
    if start is not None and hasattr(written, "decoder_start_token"):
        written.decoder_start_token = tokenizer.convert_ids_to_tokens(start)
    for name in SPECIAL:
        if hasattr(written, name) and getattr(written, name) is None:
            setattr(written, name, tokenizer.eos_token or tokenizer.convert_ids_to_tokens(0))


def _check(run: Run, folder: Path, native: FamilyConfig) -> None:
    """Raise UsageError unless CTranslate2 reproduces the run's log-probabilities."""
    special = boundary_tokens(run)
    try:
        off = largest_difference(as_float32(run.model), Engine(folder, special), special)
        why = "" if off <= LARGEST else f"its log-probabilities differ by up to {off:.1e}"
    except (DataError, RuntimeError, ValueError) as error:
        why = shortened(error).replace(str(folder), native.config["model_type"])
    if why:
        raise UsageError(f"CTranslate2 computes this '{native.config['model_type']}' differently: {why}")
