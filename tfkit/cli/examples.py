"""Exit statuses and two examples per command, shown at the end of the help. Tests parse and run the examples."""

from __future__ import annotations

import click

EXIT = """\b
Exit status: 0 done; 1 the answer is no (different, broken, altered, failed,
cut off), or the output was lost; 2 something to correct; 130 interrupted.

"""
# command, or command and subcommand -> examples without `tfkit`
EXAMPLES: dict[str, tuple[str, str]] = {
    "": ("new mine", "train mine.yaml --out runs/mine"),
    "recipes": ("recipes", "recipes bert"),
    "check": ("check mine.yaml", "check bert-base --set model.num_layers=4"),
    "show": ("show bert-base --length 128", "show mine.yaml --json"),
    "explain": ("explain bert-base model.layer.attention", "explain mine.yaml train.steps"),
    "diff": ("diff bert-base roberta-base", "diff gpt2 --set model.layer.norm=rms_norm"),
    "draw": ("draw bert-base", "draw bert-base gpt2 --out difference.svg"),
    "train": ("train translate-numbers", "train mine.yaml --out runs/mine --set train.steps=500 --resume"),
    "plan": ("plan gpt2 --devices 8 --memory 24GB", "plan mine.yaml --memory 500MB --json"),
    "evaluate": ("evaluate runs/mine", "evaluate runs/mine --split valid --limit 100"),
    "runs": ("runs --sort valid.loss", 'runs --where "norm=rms_norm" --csv'),
    "generate": ('generate runs/mine "twenty-one"', 'generate runs/mine "twenty-one" --num-beams 4 --n-best 2'),
    "predict": ('predict runs/mine "a good film"', 'predict runs/mine "a good film" --json'),
    "embed": ("embed runs/mine texts.txt --out vectors.npy", "embed runs/mine - --pooling mean"),
    "look": ('look runs/mine "twenty-one" --out page.html', 'look runs/mine "it was too tired" --token it'),
    "import": ("import openai-community/gpt2", "import ./their-model --out runs/theirs --dtype bfloat16"),
    "export": ("export runs/mine exported", "export runs/mine graphs --to onnx --quantize int8"),
    "quantize": ("quantize runs/mine runs/small --to int8", "quantize runs/mine runs/small --limit 100 --json"),
    "study": ("study norm-placement --dry-run", "study mine.yaml --out studies/mine --jobs 2"),
    "compare": ("compare runs/a runs/b --measure valid.loss", "compare studies/mine --out page"),
    "verify": (
        "verify runs/theirs --against ./their-model",
        "verify runs/theirs --against openai-community/gpt2 --json",
    ),
    "prove": ("prove runs/mine", "prove runs/mine --json"),
    "parts": ("parts norm rms_norm", "parts --verify my_norm.py"),
    "new": ("new mine --from translate-numbers --set train.steps=500", "new my_norm --part norm"),
    "schema": ("schema --out recipe.schema.json", "schema --import my_norm.py"),
}


def with_examples(command: click.Command, path: str) -> click.Command:
    """Append the exit statuses and examples to the help of a command and its subcommands."""
    if path in EXAMPLES:
        lines = [f"  tfkit {line}" for line in EXAMPLES[path]]
        command.epilog = EXIT + "\n".join(("\b", "Examples:", *lines))  # \b: click keeps the line breaks
    for name, inner in command.commands.items() if isinstance(command, click.Group) else ():
        with_examples(inner, f"{path} {name}")
    return command
