"""`tfkit verify`: comparison of a run with a Hugging Face model, or with its own ONNX files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tfkit.cli.main import NO
from tfkit.cli.options import EXACT_JSON, Finite, ReadOptions, reads_run
from tfkit.cli.terminal import echo, echo_json
from tfkit.core.errors import UsageError
from tfkit.interop.onnx import METADATA, PROVIDERS

if TYPE_CHECKING:
    from tfkit.interop.greedy import FilesVerdict
    from tfkit.interop.huggingface.verifying import Verdict


@click.command("verify")
@click.argument("run")
@click.option(
    "--against",
    required=True,
    metavar="FOLDER_OR_NAME",
    help="Reference model: a folder, or a repository on the Hugging Face hub.",
)
@click.option("--text", help="Input text for both models.  [default: random tokens]")
@click.option(
    "--tolerance",
    type=Finite(min=0),
    default=1e-4,
    show_default=True,
    help="Maximum relative difference; for ONNX, maximum absolute difference.",
)
@click.option(
    "--provider",
    type=click.Choice(tuple(PROVIDERS)),
    help="Execution provider of onnxruntime, for an ONNX folder.  [default: cpu]",
)
@EXACT_JSON
@click.pass_context
@reads_run
def command(
    context: click.Context,
    run: str,
    against: str,
    text: str | None,
    tolerance: float,
    provider: str | None,
    as_json: bool,
    reading: ReadOptions,
) -> None:
    """Compare RUN (a run folder) with a reference model: hidden states layer by layer, and logits.

    Both models compute in float32. Exit status 1: not equal. A model with its own code requires --trust.

    A folder from `tfkit export --to onnx` is run with onnxruntime, at other lengths and batch sizes than the traced
    ones, and generates from 20 prompts. For int8 weights, the difference (at most twice that of RUN quantized again),
    size, perplexity (at most 1.001 times that of float32) and speed are compared.
    """
    is_onnx = (Path(against) / METADATA).is_file()
    if text is not None and is_onnx:
        raise UsageError("--text: an ONNX folder is compared on random tokens; remove --text")
    if provider is not None and not is_onnx:
        raise UsageError(f"--provider: {against} is not a folder of `tfkit export --to onnx`")
    if is_onnx:
        from tfkit.interop.onnx.verifying import verify_onnx

        files_verdict = verify_onnx(reading.run(run, "cpu"), Path(against), provider or "cpu", tolerance)
        _print_files(files_verdict, as_json)
        context.exit(NO if files_verdict.failures else 0)
    from tfkit.interop.huggingface.verifying import verify

    verdict = verify(reading.run(run, "cpu"), against, text, tolerance, reading.trust)
    if as_json:
        echo_json(verdict.as_data())
    else:
        _print(verdict)
    if not verdict.equal:
        context.exit(NO)


def _print(verdict: Verdict) -> None:
    from rich.box import SIMPLE
    from rich.table import Table

    from tfkit.core.console import Console

    table = Table(box=SIMPLE, show_edge=False, pad_edge=False)
    table.add_column("")
    for heading in ("largest difference", "relative"):
        table.add_column(heading, justify="right")
    for one in verdict.differences:
        table.add_row(one.place, f"{one.largest:.2e}", f"{one.relative:.2e}")
    Console().print(table)
    for note in verdict.notes:
        echo(note)
    echo(f"input: {verdict.input}")
    if verdict.predicted:
        echo(f"most likely token: equal at {verdict.agreeing:,} of {verdict.predicted:,} positions")
    worst = max(verdict.differences, key=lambda one: one.relative)
    if verdict.equal:
        echo(f"equal: no relative difference above {verdict.tolerance:g}")
    else:
        off = f"{worst.place} differs by {worst.relative:.1e} of its largest value"
        echo(f"not equal: {off}; the tolerance is {verdict.tolerance:g}")


def _print_files(verdict: FilesVerdict, as_json: bool) -> None:
    if as_json:
        echo_json(verdict.as_data())
        return
    for name, worst in verdict.differences.items():
        echo(f"{name}: largest difference {worst:.1e}")
    if verdict.equal_prompts is not None:
        echo(f"greedy tokens: equal after {verdict.equal_prompts} of {verdict.prompts} prompts")
    for name, figures in verdict.figures.items():
        shown = {key: f"{value:,.3f}" if key == "perplexity" else f"{value:,.0f}" for key, value in figures.items()}
        echo(f"{name}: " + ", ".join(f"{value} {key.replace('_', ' ')}" for key, value in shown.items()))
    if verdict.quantized:
        small, whole = (verdict.figures[name]["bytes"] for name in ("int8", "float32"))
        echo(f"int8 is {small / whole:.3f} of float32 in size")
    for failure in verdict.failures:
        echo(f"not equal: {failure}")
    if not verdict.failures:
        echo(f"equal: no difference above {max(verdict.bounds.values(), default=verdict.tolerance):.2g}")
