"""A tiny model of theirs with random weights, its files, and the same model here: what the proofs compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tfkit.core.blueprint import Blueprint
from tfkit.core.registry import REGISTRY
from tfkit.interop.huggingface.convert import RenamedTensors, to_own
from tfkit.interop.huggingface.family import Family
from tfkit.interop.huggingface.files import SINGLE, open_checkpoint, read_config
from tfkit.interop.huggingface.settings import NEEDED, put
from tfkit.models.base import Model
from tfkit.models.build import build_model
from tfkit.recipe.load import load_recipe

VOCABULARY = 61
PAD = 1  # what fills rows up; never a real token here, so that positions counted from ids and from masks agree
FIRST = 5  # the least id of a real token
SPECIAL = {"pad_token_id": PAD, "bos_token_id": 2, "eos_token_id": 3}
TINY: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40,
    "max_position_embeddings": 64, **SPECIAL,
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One family's proof: their classes by name, the settings of a tiny model, and how near the two must be."""

    family: str
    config: str  # the name of their config class
    model: str  # of their model class
    settings: Mapping[str, Any]
    kind: str = "decoder"  # or encoder, encoder_decoder
    tolerance: float = 1e-5
    length: int = 14  # tokens of a row: longer than its windows and buckets
    inert: tuple[str, ...] = ()  # beginnings or ends of their names that cannot change the output, and why it is so
    segments: bool = False
    reference: str = "eager"  # their attention implementation
    std: float = 0.3
    label: str = ""
    own: tuple[str, ...] = ()  # their names of tensors that are not another one, though their class makes them so
    kept: tuple[str, ...] = ()  # parts of their names of tables that are computed, never learned
    call: Mapping[str, Any] = field(default_factory=dict)  # what theirs needs with every call to be right
    after: bool = False  # their last hidden states are after a projection that is part of our head
    stretches: bool = False  # theirs turns all rows by the length of the longest, ours each by its own
    logits: str = "logits"  # what the output of theirs calls what our head gives; several names: stacked
    marks: bool = False  # takes a global_attention_mask
    heads: Mapping[str, str] = field(default_factory=dict)  # and what it calls what our `heads` give, by their names
    pooled: str = "right"  # where padding leaves theirs right for whole texts: they read a place, whatever stands there
    end: int | None = None  # the token that texts end with
    padding: bool = True  # whether it takes any

    def __str__(self) -> str:
        return self.label or f"{self.family}-{self.model}"


@dataclass
class Pair:
    """Their model, its folder, and ours."""

    row: Row
    theirs: nn.Module
    folder: Path
    family: type[Family]
    blueprint: Blueprint
    ours: Model
    unread: list[str] = field(default_factory=list)


def make(row: Row, folder: Path) -> Pair:
    """Make their model, save it, and bring it in."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    config = getattr(transformers, row.config)(**{"vocab_size": VOCABULARY, **row.settings})
    config._attn_implementation = row.reference
    theirs = getattr(transformers, row.model)(config).eval()
    for name in row.own:
        module, _, last = name.rpartition(".")
        setattr(theirs.get_submodule(module), last, nn.Parameter(theirs.get_parameter(name).detach().clone()))
    randomise(theirs, row.std, row.kept)
    theirs.save_pretrained(folder)
    family, blueprint = described(folder)
    ours = build_model(blueprint, seed=0).eval()
    unread = fill(ours, family, folder)
    return Pair(row, theirs, folder, family, blueprint, ours, unread)


def described(folder: Path) -> tuple[type[Family], Blueprint]:
    """What a folder's config.json says here."""
    config = read_config(folder)
    family = next(part for part in families() if config["model_type"] in part.model_types)
    model = family.recipe(config)
    if (folder / SINGLE).is_file():
        with open_checkpoint(folder) as checkpoint:
            family.to_stored(model, RenamedTensors(family, checkpoint))
    return family, load_recipe({"tfkit": 1, "model": model}).blueprint()


def families() -> list[type[Family]]:
    """Every family that is registered."""
    return list(REGISTRY.load("family").values())  # type: ignore[arg-type]


def fill(ours: Model, family: type[Family], folder: Path) -> list[str]:
    """Load a folder's weights; returns their names that no output reads."""
    wanted = {name: value.shape for name, value in weights(ours).items()}
    with open_checkpoint(folder) as checkpoint:
        brought = to_own(family, checkpoint, wanted, ours.blueprint)
    with torch.no_grad():
        for name, value in weights(ours).items():
            value.copy_(brought.tensors[name])
    return brought.unread


def weights(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and the buffers that are saved, each once."""
    found: dict[int, str] = {}
    for name, value in model.state_dict(keep_vars=True).items():
        found.setdefault(id(value), name)
    named = model.state_dict(keep_vars=True)
    return {name: named[name] for name in found.values()}


def randomise(model: nn.Module, std: float, kept: Sequence[str] = ()) -> None:
    """Every parameter and saved buffer random, but those `kept`: what begins as 0 or 1 hides what does not read it."""
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for name, value in model.state_dict(keep_vars=True).items():
            if not value.is_floating_point() or any(part in name for part in kept):
                continue
            noise = torch.randn(value.shape, generator=generator) * std
            value.copy_(noise + 1 if value.dim() == 1 and "norm" in name.lower() and "weight" in name else noise)


def ids(rows: int, time: int, seed: int = 0) -> Tensor:
    """Random real tokens [rows time]."""
    return torch.randint(FIRST, VOCABULARY, (rows, time), generator=torch.Generator().manual_seed(seed))


def padded(lengths: list[int], side: str, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Rows of those lengths as one batch, filled up on one side; and which tokens are real."""
    width = max(lengths)
    tokens, real = torch.full((len(lengths), width), PAD), torch.zeros(len(lengths), width, dtype=torch.long)
    for index, length in enumerate(lengths):
        place = slice(0, length) if side == "right" else slice(width - length, width)
        tokens[index, place] = ids(1, length, seed + index)[0]
        real[index, place] = 1
    return tokens, real


def far(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference, relative to the largest of theirs."""
    assert ours.shape == theirs.shape, f"{list(ours.shape)} instead of {list(theirs.shape)}"
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1e-6))


def said(theirs: Any, names: str) -> Tensor:
    """What of their output our head gives; of several names, one after another along a last axis."""
    parts = [getattr(theirs, name) for name in names.split()]
    return parts[0] if len(parts) == 1 else torch.stack(parts, dim=-1)


@torch.no_grad()
def outputs(pair: Pair, **call: Any) -> dict[str, tuple[Tensor, Tensor]]:
    """Logits and last hidden states, ours and theirs, of one call in their argument names."""
    positions, own = call.pop("places", None), call.pop("own", {})
    places = {} if positions is None else {"position_ids": positions}
    theirs = pair.theirs(**call, **pair.row.call, output_hidden_states=True, **places)
    ours = pair.ours(**call, **places, **own)
    hidden = getattr(theirs, "decoder_hidden_states", None) or getattr(theirs, "hidden_states", None)
    last = getattr(theirs, "last_hidden_state", None)  # where there is a norm after them, hidden_states has it not
    last = hidden[-1] if last is None else last
    found = {} if pair.row.after else {"hidden": (ours.hidden, last)}
    if ours.logits is not None:
        found["logits"] = (ours.logits, said(theirs, pair.row.logits))
    return found | {name: (ours.heads[name], getattr(theirs, said)) for name, said in pair.row.heads.items()}


def sized(family: Any, config: Mapping[str, Any], size: int = 12) -> dict[str, Any]:
    """Return a config with every size that its family needs."""
    made: dict[str, Any] = {}
    for row in family.settings:
        if row.default is NEEDED and not any(key in config for key in row.also):
            put(made, row.config_key, size)
    return {**made, **config}
