"""Every family gives their numbers: logits, hidden states, padding on either side, a greedy continuation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tfkit.core.component import spell
from tfkit.core.errors import DataError
from tfkit.interop.huggingface.convert import to_checkpoint, to_own
from tfkit.interop.huggingface.exporting import auto_class
from tfkit.interop.huggingface.family import families
from tfkit.interop.huggingface.files import open_checkpoint
from tfkit.interop.huggingface.matching import _candidates, matching_family
from tfkit.interop.huggingface.tensors import matches
from tfkit.recipe.views.resolved import model_values

from .parity import TINY, Pair, Row, far, ids, make, outputs, padded, randomise, weights
from .rows import ROWS

pytest.importorskip("transformers", reason="the proofs need transformers, which the extra test brings")
NEW = 12  # tokens of a greedy continuation


@pytest.fixture(scope="module", params=ROWS, ids=str)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    yield make(request.param, tmp_path_factory.mktemp("theirs"))


def extra(row: Row, shape: tuple[int, int], source: Tensor | None = None) -> dict[str, Any]:
    """What a call has besides ids."""
    given: dict[str, Any] = {}
    if row.segments:
        given["token_type_ids"] = torch.arange(shape[1]).expand(shape) % 2
    if row.marks:  # one row has more than the others, and with padding on the left one of them is no token
        given["global_attention_mask"] = torch.zeros(shape, dtype=torch.long)
        given["global_attention_mask"][:, [0, shape[1] - 2]] = 1
        given["global_attention_mask"][0, shape[1] // 2] = 1
    return given


def ended(row: Row, tokens: Tensor, real: Tensor) -> Tensor:
    """The tokens with an end at the last real place, and in the second text another one before it."""
    if row.end is None:
        return tokens
    last = tokens.shape[1] - 1 - real.flip(1).argmax(dim=1)
    tokens = tokens.where(tokens != row.end, row.end - 1).scatter(1, last[:, None], row.end)
    tokens[1, last[1] - 2] = row.end
    return tokens


def near(pair: Pair, found: dict[str, tuple[Tensor, Tensor]], real: Tensor | None = None) -> None:
    for name, (ours, theirs) in found.items():
        if real is not None and ours.shape[:2] == real.shape:
            ours, theirs = ours[real.bool()], theirs[real.bool()]
        assert torch.isfinite(ours).all(), f"{name} is not finite"
        assert theirs.std() > 1e-3, f"their {name} says nothing: {float(theirs.std()):.1e}"
        distance = far(ours, theirs)
        assert distance <= pair.row.tolerance, f"{name} is off by {distance:.1e}"


@pytest.mark.whole
def test_the_same_numbers(pair: Pair) -> None:
    row, tokens = pair.row, ids(2, pair.row.length)
    tokens = ended(row, tokens, torch.ones_like(tokens))
    call = {"input_ids": tokens, **extra(row, tuple(tokens.shape))}
    if row.kind == "encoder_decoder":
        call["decoder_input_ids"] = ids(2, row.length - 2, seed=5)
    near(pair, outputs(pair, **call))


@pytest.mark.parametrize("side", ["right", "left"])
def test_the_same_numbers_with_padding(pair: Pair, side: str) -> None:
    row = pair.row
    if not row.padding:
        return
    tokens, real = padded([row.length, row.length - 5, 3], side)
    tokens = ended(row, tokens, real)
    call = {"input_ids": tokens, "attention_mask": real, **extra(row, tuple(tokens.shape))}
    seen = real
    if row.stretches:
        near(pair, alone(pair, tokens, real), real)
        return
    if row.kind == "encoder_decoder":
        # what is written is filled up at its end: before its start there is nothing in training, nor in generation
        call["decoder_input_ids"], seen = padded([row.length - 2, 4, row.length - 3], "right", seed=5)
        call["decoder_attention_mask"] = seen
    skips = any(part.skips_padding for part in next(pair.ours.children()).position)
    if row.kind == "decoder" and side == "left" and not skips:
        call["places"] = (real.cumsum(dim=1) - 1).clamp(min=0)
    elif side == "left" and not skips:
        call["own"] = {"position_ids": torch.arange(tokens.shape[1])[None]}  # their encoders number padding as well
    found = outputs(pair, **call)
    if row.kind == "encoder" and row.pooled not in (side, "both"):
        found = {name: both for name, both in found.items() if both[0].shape[:2] == seen.shape}
    near(pair, found, seen)


@torch.no_grad()
def alone(pair: Pair, tokens: Tensor, real: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Our logits of a padded batch, and theirs of each row by itself, set where the row stands."""
    places = (real.cumsum(dim=1) - 1).clamp(min=0)
    ours = pair.ours(tokens, attention_mask=real, position_ids=places).logits
    theirs = torch.zeros_like(ours)
    for row in range(len(tokens)):
        theirs[row, real[row].bool()] = pair.theirs(tokens[row, real[row].bool()][None]).logits[0]
    return {"logits": (ours, theirs)}


@torch.no_grad()
def test_the_same_greedy_continuation(pair: Pair) -> None:
    row = pair.row
    head = pair.ours.blueprint.head
    if row.kind == "encoder" or head is None or head.part.part_name not in ("language_model", "masked_lm"):
        return
    source = ids(1, row.length, seed=8)
    tokens = source if row.kind == "decoder" else torch.tensor([[2]])
    begin = tokens.shape[1]
    more = {} if row.kind == "decoder" else {"input_ids": source, **extra(row, (1, row.length))}
    name = "input_ids" if row.kind == "decoder" else "decoder_input_ids"
    state = pair.ours.new_state() if pair.ours.caches and not row.stretches else None
    theirs = ours = tokens
    for _ in range(NEW):
        logits = pair.theirs(**more, **row.call, **{name: theirs}).logits
        theirs = torch.cat((theirs, logits[:, -1:].argmax(dim=-1)), dim=1)
        new = ours if state is None else ours[:, state.length :]
        logits = pair.ours(**more, **{name: new}, state=state).logits
        ours = torch.cat((ours, logits[:, -1:].argmax(dim=-1)), dim=1)
    assert ours[0, begin:].tolist() == theirs[0, begin:].tolist()


@torch.no_grad()
def test_every_tensor_is_read(pair: Pair) -> None:
    """What is moved must move the output, unless it is set that it cannot."""
    row = pair.row
    tokens, real = padded([row.length, row.length - 3 * row.padding], "right")
    tokens = ended(row, tokens, real)
    call = {"input_ids": tokens, "attention_mask": real, **extra(row, tuple(tokens.shape))}
    if not row.padding:
        del call["attention_mask"]
    if row.kind == "encoder_decoder":
        call["decoder_input_ids"] = ids(2, row.length - 2, seed=5)

    def reply() -> Tensor:
        out = pair.ours(**call)
        given = [*([] if out.logits is None else [out.logits]), *out.heads.values()]
        given += [out.hidden] if row.marks else []  # a head of the first token, which is marked, reads half of it
        return torch.cat([tensor.flatten() for tensor in given or [out.hidden]])

    before = reply()
    silent = []
    for name, value in weights(pair.ours).items():
        kept = value.clone()
        value.add_(torch.randn(value.shape, generator=torch.Generator().manual_seed(4)) * row.std)
        if far(reply(), before) < 1e-7:
            silent.append(name)
        value.copy_(kept)
    inert = [name for name in silent if name.endswith(("key.bias", "key_global.bias"))]
    assert sorted(set(silent) - set(inert)) == [], "these change nothing"


@pytest.mark.whole
def test_the_way_back_is_the_same_to_the_bit(pair: Pair, tmp_path: Path) -> None:
    written = to_checkpoint(pair.family, weights(pair.ours), pair.blueprint)
    with open_checkpoint(pair.folder) as checkpoint:
        for name, tensor in checkpoint.items():
            if plain(name) in written:
                assert torch.equal(written[plain(name)], tensor), f"{name} differs"
        stored = set(map(plain, checkpoint))  # their files have a tensor for each expert, their models one for all
        computed = {name for name in stored if matches(pair.family.ignored, name.removeprefix(pair.family.prefix))}
        missing = stored - set(written) - set(pair.unread) - computed
        assert all(name in pair.family.tied or name.endswith(tuple(pair.family.tied)) for name in missing), missing
    theirs = {*pair.theirs.state_dict(), *stored}
    assert set(written) <= theirs, set(written) - theirs


def plain(name: str) -> str:
    """Return a tensor name in today's spelling."""
    return name.replace(".gamma", ".weight").replace(".beta", ".bias")


@torch.no_grad()
def test_a_written_config_makes_the_same_model(pair: Pair) -> None:
    """The config.json that export writes, read by transformers; the family is among the first that export tries."""
    row, name = pair.row, pair.family.part_name
    assert (name, row.model) in next(_candidates(spell(model_values(pair.blueprint)), families(), ()))
    found, _ = matching_family(pair.blueprint, (name, row.model))
    assert found is not None, "no config.json expresses it"
    assert (found.family, found.head_class) == (pair.family, row.model)
    if row.own:  # the tensors alone say that these are not tied
        return
    # special tokens are no part of the architecture, and the table may be smaller than the default ids
    special = {key: row.settings.get(key) for key in ("pad_token_id", "bos_token_id", "eos_token_id")}
    values = {key: value for key, value in found.config.items() if key not in ("architectures", "model_type")}
    config = type(pair.theirs.config)(**special | values)  # type: ignore[operator]
    config._attn_implementation = row.reference
    again = type(pair.theirs)(config).eval()
    randomise(again, row.std, row.kept)
    text = ended(row, ids(2, row.length), torch.ones(2, row.length))
    call = {"input_ids": text, **row.call, **({"decoder_input_ids": text} if row.kind == "encoder_decoder" else {})}
    ours, theirs = again(**call), pair.theirs(**call)
    assert list(ours) == list(theirs)
    for key in (key for key, value in theirs.items() if isinstance(value, Tensor)):
        assert far(ours[key], theirs[key]) <= 1e-7, key


@pytest.mark.full
@pytest.mark.whole
@torch.no_grad()
def test_is_decoder_decides_whatever_the_class_is_called(tmp_path: Path) -> None:
    """In transformers, the class of a BERT tells its head, and `is_decoder` whether it looks ahead."""
    for model, kind in (("ForCausalLM", "encoder"), ("ForMaskedLM", "decoder"), ("ForTokenClassification", "decoder")):
        settings = {**TINY, "num_labels": 5, "is_decoder": kind == "decoder"}
        row = Row("roberta", "RobertaConfig", f"Roberta{model}", settings, kind=kind)
        pair = make(row, tmp_path / model)
        assert (pair.blueprint.decoder is None) == (kind == "encoder")
        assert (auto_class(pair.blueprint) == "AutoModelForCausalLM") == (kind == "decoder" and "Token" not in model)
        near(pair, outputs(pair, input_ids=ids(2, row.length)))
        found, _ = matching_family(pair.blueprint, (row.family, row.model))
        assert found is not None and (found.head_class, found.config["is_decoder"]) == (row.model, kind == "decoder")


def test_experts_stacked_as_in_memory_are_read_too(pair: Pair) -> None:
    if "moe" not in pair.row.family and pair.row.family != "mixtral":
        return
    wanted = {name: value.shape for name, value in weights(pair.ours).items()}
    stacked = {name: value for name, value in pair.theirs.state_dict().items() if "rotary" not in name}
    brought = to_own(pair.family, stacked, wanted, pair.blueprint)
    for name, value in weights(pair.ours).items():
        assert torch.equal(brought.tensors[name], value), name


@pytest.mark.full
def test_what_luke_has_for_entities_is_not_read(tmp_path: Path) -> None:
    settings = {**TINY, "entity_vocab_size": 7, "entity_emb_size": 12}
    pair = make(Row("luke", "LukeConfig", "LukeForMaskedLM", settings, kind="encoder"), tmp_path)
    assert {name.split(".")[-2] for name in pair.unread if "layer" in name} == {"w2e_query", "e2w_query", "e2e_query"}
    near(pair, outputs(pair, input_ids=ids(2, 14)))


@pytest.mark.full
@pytest.mark.full
def test_tensors_that_published_files_lack_are_zeros(tmp_path: Path) -> None:
    """A.X-K1's files have no selection bias, and a norm in dense layers too, which nothing reads."""
    pair = make(next(row for row in ROWS if row.family == "axk1"), tmp_path)
    wanted = {name: value.shape for name, value in weights(pair.ours).items()}
    with open_checkpoint(pair.folder) as checkpoint:
        files = {name: value for name, value in checkpoint.items() if "e_score_correction_bias" not in name}
    extra = "model.layers.0.post_mlp_layernorm.weight"
    brought = to_own(pair.family, files | {extra: torch.ones(2)}, wanted, pair.blueprint)
    assert brought.unread == [extra]
    assert all(not value.any() for name, value in brought.tensors.items() if name.endswith("selection_bias"))
    del files["model.layers.1.mlp.gate.weight"]
    with pytest.raises(DataError, match=r"missing in the files: .*layers\.1\.feedforward\.router\.projection"):
        to_own(pair.family, files, wanted, pair.blueprint)


def test_extra_layers_are_ignored_and_others_must_be_read(tmp_path: Path) -> None:
    pair = make(next(row for row in ROWS if row.family == "deepseek_v3"), tmp_path)
    wanted = {name: value.shape for name, value in weights(pair.ours).items()}
    files = {name: value for name, value in pair.theirs.state_dict().items() if "rotary" not in name}
    ahead = {"model.layers.3.eh_proj.weight": torch.zeros(2, 4), "model.layers.3.input_layernorm.weight": torch.ones(2)}
    assert sorted(to_own(pair.family, files | ahead, wanted, pair.blueprint).unread) == sorted(ahead)
    with pytest.raises(DataError, match=r"covers model\.layers\.2\.eh_proj\.weight"):
        to_own(pair.family, files | {"model.layers.2.eh_proj.weight": torch.zeros(2, 4)}, wanted, pair.blueprint)
