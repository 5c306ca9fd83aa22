"""The contracts: what every part promises, tried on a small model, a small vocabulary or a few examples.

| file | what it asks |
|---|---|
| built | it is built, and its options survive being written and read |
| shapes | shapes, kinds, the same at every call, float32 as float64 |
| gradients | every parameter can be learnt |
| visibility | no look into the future, nor past a mask |
| padding | padding, other rows and other texts of a row change nothing |
| cache | decoding from a state gives what the whole text gives |
| positions | rotations, biases and temperatures of a position are taken |
| memory | a memory is attended to, and weights say what was read |
| saving | seeds, copies, files, models on `meta` |
| dropout | it belongs to training |
| parametrization | muP: a step changes a wide model as much as a narrow one |
| compile | one graph, any sizes |
| refusals | what it does not declare is refused |
| tokenizer, corpus, objective, optimizer, schedule, metric, generation, strategy | the parts outside the model |

`verify` holds parts to all of them and says in words what failed: `tfkit parts --verify my_parts.py`. A check is a
function of a `Case` that raises `Broken`; it is entered with `@contract` and runs when those it needs have held. A part
that breaks one for a good reason declares that in `exceptions`.
"""

from importlib import import_module

# in the order in which checks run: what others need comes first
FILES = (
    "built", "shapes", "gradients", "visibility", "padding", "cache", "positions", "memory", "saving", "dropout",
    "parametrization", "refusals", "compile",
    "tokenizer", "corpus", "objective", "optimizer", "schedule", "metric", "generation", "strategy",
)  # fmt: skip
for _file in FILES:
    import_module(f"tfkit.contracts.{_file}")
