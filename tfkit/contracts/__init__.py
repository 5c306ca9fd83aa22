"""Contracts: the promises of each kind of part, checked on small models, small vocabularies and few examples.

| file | promise |
|---|---|
| shapes | the part is built and its options survive a round trip; shapes, dtypes, float64, gradients |
| visibility | no masked or future token is read; padding, other rows and other texts in a row have no effect |
| cache | incremental decoding equals a full forward pass; positions, memory and attention weights are applied |
| saving | weights depend on the seed and survive saving; dropout, muP, refusals, one compiled graph, plain code |
| tokenizer, objective, strategy | parts outside the model: tokenizers and corpora, objectives, rules and strategies |
| optimizer, metric | parts of training: optimizers, schedules and adapters, metrics and callbacks |
| proving | the same comparisons on the model and texts of a run: `tfkit prove` |

`verify` runs the checks and describes failures; the command is `tfkit parts --verify my_parts.py`. A check is a
function of a `Case` that raises `Broken`. It is registered with `@contract` and runs only after its dependencies have
passed. A part that breaks a contract for a good reason declares it in `exceptions`; `plain` returns its reason.
"""
