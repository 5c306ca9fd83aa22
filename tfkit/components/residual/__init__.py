"""Residual layouts.

| type | choose it when |
|---|---|
| post_norm | the original, BERT, BART: at its best with warm-up and up to a dozen layers |
| pre_norm | GPT-2, T5, Llama: trains at any depth; the safe choice for a new model |
| sandwich | Gemma 2: pre_norm with the branches' outputs kept in bounds too |
| branch_norm | OLMo 2: only the branches' outputs are normed |
| parallel | GPT-J, PaLM: the sublayers of a layer at once, from one norm; faster |
| parallel_two_norms | GPT-NeoX: the same with a norm for each sublayer |
| plain | no way around the sublayers, as `residual: none` says it: recurrent baselines of old |
| deep_norm | a post_norm stack of dozens to a thousand layers |
"""

from tfkit.components.residual.base import Branch, Residual
from tfkit.components.residual.branch_norm import BranchNorm
from tfkit.components.residual.deep_norm import DeepNorm
from tfkit.components.residual.parallel import Parallel
from tfkit.components.residual.parallel_two_norms import ParallelTwoNorms
from tfkit.components.residual.plain import Plain
from tfkit.components.residual.post_norm import PostNorm
from tfkit.components.residual.pre_norm import PreNorm
from tfkit.components.residual.sandwich import Sandwich

__all__ = [
    "Branch",
    "BranchNorm",
    "DeepNorm",
    "Parallel",
    "ParallelTwoNorms",
    "Plain",
    "PostNorm",
    "PreNorm",
    "Residual",
    "Sandwich",
]
