"""Generate text from this folder with onnxruntime, numpy and tokenizers alone: python example.py "a prompt" 20."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np


def call(graph: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    """Return the outputs of a graph by name, ignoring inputs that it lacks."""
    outputs = graph.run(None, {one.name: inputs[one.name] for one in graph.get_inputs()})
    return {one.name: value for one, value in zip(graph.get_outputs(), outputs, strict=True)}


def generate(graphs: list[Any], facts: dict[str, Any], ids: Any, count: int) -> list[int]:
    """Return the greedy continuation of a prompt [1 time], or the greedy target for a source."""
    inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "encoder_attention_mask": np.ones_like(ids)}
    inputs |= call(graphs[0], inputs) if len(graphs) == 2 else {}  # run the encoder once
    past = [one for one in graphs[-1].get_inputs() if one.name.startswith("past.")]
    inputs |= {one.name: np.zeros((1, one.shape[1], 0, one.shape[3]), np.float32) for one in past}
    side = "decoder_" * (facts["start"] is not None and len(graphs) == 1)
    text = begin = ids[0].tolist() if facts["start"] is None else [facts["start"]]
    for _ in range(min(count, (facts["max_length"] or sys.maxsize) - len(begin))):
        new = np.array([text[inputs[past[0].name].shape[2] if past else 0 :]])  # tokens that are not in the cache
        inputs |= {f"{side}input_ids": new, f"{side}attention_mask": np.ones((1, len(text)), np.int64)}
        inputs |= {name.replace("present.", "past."): value for name, value in call(graphs[-1], inputs).items()}
        if (token := int(inputs["logits"][0, -1].argmax())) in facts["ends"]:
            break
        text = [*text, token]
    return text[len(begin) :]


if __name__ == "__main__":
    from onnxruntime import InferenceSession
    from tokenizers import Tokenizer

    facts = json.loads(Path(__file__).with_name("metadata.json").read_text("utf-8"))
    reader, writer = (Tokenizer.from_file(str(Path(__file__).with_name(name))) for name in facts["tokenizers"])
    graphs = [InferenceSession(Path(__file__).with_name(name)) for name in facts["graphs"]]
    print(writer.decode(generate(graphs, facts, np.array([reader.encode(sys.argv[1]).ids]), int(sys.argv[2]))))
