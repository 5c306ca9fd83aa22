"""The Run: a trained model in its folder, for generation, prediction, evaluation and resumption.

stored    contents of the folder: recipe, tokenizer, weights, objective, each loaded on first use
run       Run: generate, predict, embed, show attention, evaluate; load_run
training  train and save, which write a run folder and return its Run
handout   the page of `tfkit report`

Start with `Run` in run.py.
"""

from tfkit.run.run import Run, evaluate, load_run
from tfkit.run.training import save, train

__all__ = ["Run", "evaluate", "load_run", "save", "train"]
