"""Generate text from this folder with onnxruntime, numpy and tokenizers alone: python example.py "a prompt" 20."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np


def call(graph: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Return the outputs of a graph by name, ignoring inputs that it lacks."""
    found = graph.run(None, {one.name: given[one.name] for one in graph.get_inputs()})
    return {one.name: value for one, value in zip(graph.get_outputs(), found, strict=True)}


def generate(graphs: dict[str, Any], ids: list[int], count: int, start: int | None, ends: list[int]) -> Iterator[int]:
    """Yield greedy tokens after a prompt, or from `start` on for a source."""
    given = {"input_ids": np.array([ids]), "attention_mask": np.ones((1, len(ids)), np.int64)}
    if "encoder.onnx" in graphs:
        given = call(graphs["encoder.onnx"], given) | {"encoder_attention_mask": given["attention_mask"]}
    step = graphs.get("decoder.onnx") or graphs["model.onnx"]
    past = [one for one in step.get_inputs() if one.name.startswith("past.")]
    given |= {one.name: np.zeros((1, one.shape[1], 0, one.shape[3]), np.float32) for one in past}
    text, side = (ids[:], "") if start is None else ([start], "decoder_" * ("model.onnx" in graphs))
    for _ in range(count):
        cached = given[past[0].name].shape[2] if past else 0  # tokens in the cache
        given |= {f"{side}input_ids": np.array([text[cached:]])}
        given |= {f"{side}attention_mask": np.ones((1, len(text)), np.int64)}
        given |= {name.replace("present.", "past."): value for name, value in call(step, given).items()}
        text.append(int(given["logits"][0, -1].argmax()))
        if text[-1] in ends:
            break
        yield text[-1]


if __name__ == "__main__":
    from onnxruntime import InferenceSession
    from tokenizers import Tokenizer

    folder = Path(__file__).parent
    facts = json.loads((folder / "metadata.json").read_text("utf-8"))
    reader, writer = (Tokenizer.from_file(str(folder / name)) for name in facts["tokenizers"])
    graphs = {name: InferenceSession(folder / name) for name in facts["graphs"]}
    ids = reader.encode(sys.argv[1]).ids
    room = (facts["max_length"] or sys.maxsize) - (len(ids) if facts["start"] is None else 1)
    print(writer.decode(list(generate(graphs, ids, min(int(sys.argv[2]), room), facts["start"], facts["ends"]))))
