"""The contracts: promises of every part, checked on a small model, a small vocabulary or a few examples.

| file | promise |
|---|---|
| built | the part can be built, and its options survive a round trip |
| shapes | shapes, dtypes, determinism, agreement of float32 with float64 |
| gradients | every parameter receives a gradient |
| visibility | no masked or future token is read |
| padding | padding, other rows and other texts of a row have no effect |
| cache | incremental decoding equals a full forward pass |
| positions | rotations, biases and temperatures of a position are applied |
| memory | the memory is attended to, and the weights are correct |
| saving | seeds, copies, files, models on `meta` |
| dropout | dropout is active in training only |
| parametrization | muP: the size of an update does not depend on the width |
| compile | the model compiles to a single graph, for any sizes |
| refusals | undeclared capabilities are refused |
| tokenizer, corpus, objective, optimizer, schedule, metric, generation, strategy | promises of the parts outside the
model |

`verify` runs them and describes failures: `tfkit parts --verify my_parts.py`. A check is a function of a `Case` that
raises `Broken`; it is registered with `@contract` and runs after its dependencies have passed. A part that breaks a
contract for a good reason declares that in `exceptions`.
"""

from importlib import import_module

# in the order of execution: dependencies come first
FILES = (
    "built", "shapes", "gradients", "visibility", "padding", "cache", "positions", "memory", "saving", "dropout",
    "parametrization", "refusals", "compile",
    "tokenizer", "corpus", "objective", "optimizer", "schedule", "metric", "generation", "strategy",
)  # fmt: skip
for _file in FILES:
    import_module(f"tfkit.contracts.{_file}")
