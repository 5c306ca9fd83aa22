"""Contracts: the promises of each kind of part, checked on small models, small vocabularies and few examples.

| file | promise |
|---|---|
| built | the part can be built, and its options survive a round trip |
| shapes | shapes and dtypes are correct, calls are deterministic, float32 agrees with float64 |
| gradients | every parameter receives a gradient |
| visibility | no masked or future token is read |
| padding | padding, other rows of a batch and other texts in a row have no effect |
| cache | incremental decoding equals a full forward pass |
| positions | attention applies the rotation, bias and temperature of a position |
| memory | cross-attention reads the whole memory, and attention weights are correct |
| saving | weights depend on the seed, survive saving and copying, and can be built on `meta` |
| dropout | dropout is active only in training |
| parametrization | under muP, the size of an update does not depend on the width |
| compile | the model compiles to a single graph and exports with dynamic sizes |
| refusals | recipes that need undeclared capabilities are refused |
| tokenizer, corpus, objective, generation, strategy | parts outside the model |
| optimizer, schedule, adapter, metric, callback | parts of training |
| proving | the same comparisons on the model and texts of a run: `tfkit prove` |

`verify` runs the checks and describes failures; the command is `tfkit parts --verify my_parts.py`. A check is a
function of a `Case` that raises `Broken`. It is registered with `@contract` and runs only after its dependencies have
passed. A part that breaks a contract for a good reason declares it in `exceptions`.
"""
