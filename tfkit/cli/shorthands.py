"""Generation options of the command line."""

from __future__ import annotations

import functools
from dataclasses import fields
from typing import Any

import click

from tfkit.cli.options import Function, Whole
from tfkit.core.bounds import COUNT, ROWS, SEED, TEXTS
from tfkit.generation.shorthands import Shorthands

OPTIONS = (
    click.option("--strategy", metavar="NAME", help="Decoding strategy: greedy, sample, beam, ..."),
    click.option(
        "--temperature", type=float, metavar="X", help="Sampling temperature: more random above 1, less below."
    ),
    click.option("--top-k", type=Whole(COUNT), metavar="K", help="Sample from the K most likely tokens."),
    click.option(
        "--top-p", type=float, metavar="P", help="Sample from the smallest set of tokens with total probability P."
    ),
    click.option("--num-beams", type=Whole(TEXTS), metavar="N", help="Beam search with N beams."),
    click.option("--n-best", type=Whole(TEXTS), metavar="N", help="Print N texts per prompt, best first."),
    click.option("--seed", type=Whole(SEED, 0), metavar="N", help="Seed of the random draws."),
    click.option("--batch-size", type=Whole(ROWS), metavar="N", help="Prompts per batch.  [default: 64]"),
    click.option(
        "--quantize",
        type=click.Choice(["int8", "bfloat16"]),
        help="Quantize the weights: generation is faster, but less exact.",
    ),
    click.option(
        "--max-new-tokens", type=Whole(COUNT), metavar="N", help="Stop after N new tokens.  [default: the recipe's]"
    ),
)


def takes_generation_options(function: Function) -> Function:
    """Add the generation options to a command, which receives them as `shorthands`."""

    @functools.wraps(function)
    def with_shorthands(*args: object, **kwargs: Any) -> object:
        options = {field.name: kwargs.pop(field.name) for field in fields(Shorthands)}
        return function(*args, shorthands=Shorthands(**options), **kwargs)

    decorated: Function = with_shorthands
    for option in reversed(OPTIONS):
        decorated = option(decorated)
    return decorated
