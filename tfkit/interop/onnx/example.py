"""Text from this folder with onnxruntime, numpy and tokenizers alone: python example.py "a prompt" 20."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np


def call(session: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the outputs of a file by name; inputs that it does not have are left out."""
    found = session.run(None, {one.name: given[one.name] for one in session.get_inputs()})
    return dict(zip([one.name for one in session.get_outputs()], found, strict=True))


def generate(sessions: Mapping[str, Any], ids: Sequence[int], count: int, start: int | None, ends: Collection[int]):  # type: ignore[no-untyped-def]
    """Yield the likeliest tokens one by one, after a prompt or, from `start` on, of a source."""
    given = {"input_ids": np.array([ids]), "attention_mask": np.ones((1, len(ids)), np.int64)}
    step = sessions[max(sessions, key=lambda name: name == "decoder.onnx")]
    if "encoder.onnx" in sessions:
        given = call(sessions["encoder.onnx"], given) | {"encoder_attention_mask": given["attention_mask"]}
    past = {one.name: one.shape for one in step.get_inputs() if one.name.startswith("past.")}
    given |= {name: np.zeros((1, shape[1], 0, shape[3]), np.float32) for name, shape in past.items()}
    prefix = "decoder_" if start is not None and not past else ""
    text = new = list(ids) if start is None else [start]
    for _ in range(count):
        mask = np.ones((1, len(text)), np.int64)
        given |= {f"{prefix}input_ids": np.array([new if past else text]), f"{prefix}attention_mask": mask}
        found = call(step, given)
        given |= {name.replace("present.", "past."): value for name, value in found.items()}
        new = [int(found["logits"][0, -1].argmax())]
        if new[0] in ends:
            return
        yield new[0]
        text = text + new


if __name__ == "__main__":
    import onnxruntime
    from tokenizers import Tokenizer

    folder = Path(__file__).parent
    facts = json.loads((folder / "metadata.json").read_text("utf-8"))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    files = {name: onnxruntime.InferenceSession(folder / name) for name in facts["graphs"]}
    written = generate(files, tokenizer.encode(sys.argv[1]).ids, int(sys.argv[2]), facts["start"], facts["ends"])
    print(tokenizer.decode(list(written)))
