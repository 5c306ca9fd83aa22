"""A model as a transformers PreTrainedModel: the classes of an export, sharing the model's weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfkit.core.errors import UsageError, optional
from tfkit.interop.huggingface.exporting import facts, ids_of
from tfkit.interop.huggingface.own import own_config
from tfkit.interop.huggingface.strangers import ID_KEYS
from tfkit.interop.huggingface.weights import own_tensors
from tfkit.models.base import Model
from tfkit.run import Run

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def as_pretrained(model: Model | Run) -> PreTrainedModel:
    """Wrap a model in a PreTrainedModel without copying it; a run's labels and special tokens are included.

    The result works with Trainer and `generate`, and `save_pretrained` writes a folder that loads with
    trust_remote_code=True and without tfkit. Raises UsageError for anything but a run or a model.
    """
    optional("transformers", "hf", "tfkit.as_pretrained needs")
    if not isinstance(model, Model | Run):
        raise UsageError(f"as_pretrained needs a run or a model from tfkit.build, got a {type(model).__name__}")
    from tfkit.interop.huggingface.own import modeling_tfkit

    net, labels = (model.model, model.labels) if isinstance(model, Run) else (model, ())
    tensors, tied = own_tensors(net)
    special = dict(net.blueprint.special_ids)
    ids = ids_of(model) if isinstance(model, Run) else {key: special.get(role) for role, key in ID_KEYS.items()}
    if net.blueprint.encoder is not None and net.blueprint.decoder is not None:
        ids = {"decoder_start_token_id": special.get("start"), **ids}
    config = own_config(net, labels, tied) | ids | facts(net.blueprint, tensors)
    classes = vars(modeling_tfkit)
    wrapped: PreTrainedModel = classes[config["architectures"][0]](modeling_tfkit.TfkitConfig(**config), net)
    return wrapped.train(net.training)
