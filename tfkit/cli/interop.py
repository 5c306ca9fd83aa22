"""`tfkit import`, `export`, `verify` and `quantize`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tfkit.cli.completion import RUN
from tfkit.cli.main import NO
from tfkit.cli.options import IMPORTS, Finite, ReadOptions, Whole, reads_run
from tfkit.cli.terminal import echo, echo_data, working
from tfkit.core.bounds import COUNT
from tfkit.core.errors import UsageError
from tfkit.interop.onnx import METADATA, OPSETS, PROVIDERS

if TYPE_CHECKING:
    from tfkit.core.figures import Console
    from tfkit.interop.greedy import FilesVerdict
    from tfkit.interop.huggingface.importing import ImportedModel
    from tfkit.interop.huggingface.verifying import Verdict
    from tfkit.interop.quantizing import QuantizedRun
    from tfkit.run import Run

DTYPES = ("float32", "bfloat16", "float16")


@click.command("import")
@click.argument("source", metavar="FOLDER_OR_NAME")
@click.option("--out", metavar="RUN", help="Output folder.  [default: runs/<model name>]")
@click.option("--dtype", type=click.Choice(DTYPES), default=DTYPES[0], show_default=True, help="Dtype of the weights.")
@click.option("--force", is_flag=True, help="Rename an existing run to NAME.old.")
@IMPORTS
def import_command(source: str, out: str | None, dtype: str, force: bool, imports: tuple[str, ...]) -> None:
    """Import a model: a folder with config.json and safetensors, or the name of a repository on the hub.

    Write a run folder with recipe, weights and tokenizer, for show, generate, verify and other commands. No code
    from the source is executed, and pickled weights are refused. Custom families are registered with --import.
    """
    from tfkit.interop.huggingface.importing import import_model
    from tfkit.recipe.imports import imported

    for name in imports:
        imported(name)
    result = import_model(source, out, dtype, force, imports)
    echo_data(result.as_data(), lambda _: _print_import(result, source))


def _print_import(result: ImportedModel, source: str) -> None:
    echo(f"{result.run}: {result.family} ({result.head_class}), {result.parameters:,} parameters in {result.dtype}")
    if result.tokenizer is not None:
        roles = ", ".join(f"{role} {id_}" for role, id_ in result.tokenizer.special_ids.items())
        sources = result.tokenizer.source.vocab_size
        sides = "" if result.tokenizer.source is result.tokenizer else f" for targets, {sources:,} for sources"
        echo(f"tokenizer: {result.tokenizer.vocab_size:,} tokens{sides}; {roles}")
    for note in result.notes:
        echo(note)
    echo(f"Next: tfkit show {result.run}\n      tfkit verify {result.run} --against {source}")


FORMATS = ("huggingface", "onnx", "sentence-transformers", "peft")
HUGGINGFACE, ONNX, SENTENCES, PEFT = FORMATS


class Format(click.Choice[str]):
    """A format, with the replacement of a removed one."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value == "ctranslate2":
            raise UsageError(
                "--to ctranslate2 was removed: run `tfkit export RUN FOLDER`, then CTranslate2's own "
                "`ct2-transformers-converter --model FOLDER --output_dir CT2`"
            )
        return super().convert(value, param, ctx)


@click.command("export")
@click.argument("run", type=RUN)
@click.argument("folder")
@click.option("--to", "form", type=Format(FORMATS), default=HUGGINGFACE, show_default=True, help="Output format.")
@click.option("--force", is_flag=True, help="Rename an existing model to NAME.old.")
@click.option(
    "--opset",
    type=click.Choice([str(number) for number in range(OPSETS[0], OPSETS[1] + 1)]),
    help="ONNX opset version.  [default: 23, which has the Attention operator]",
)
@click.option("--quantize", type=click.Choice(("int8",)), help="Quantize the weights of an ONNX export to int8.")
@click.option(
    "--pooling",
    type=click.Choice(("mean", "first", "last", "max", "mean_sqrt", "weighted_mean")),
    help="Pooling for --to sentence-transformers, as in tfkit embed.  [default: the model's, else mean]",
)
@reads_run
def export_command(
    run: str,
    folder: str,
    form: str,
    force: bool,
    opset: str | None,
    quantize: str | None,
    pooling: str | None,
    reading: ReadOptions,
) -> None:
    """Export RUN (a run folder) to FOLDER, in the format of transformers or ONNX.

    If transformers implements the architecture, the folder contains only weights, configuration and tokenizer.
    Otherwise it includes the model's code, which transformers runs with trust_remote_code=True; tfkit does not need to
    be installed.

    `--to onnx` writes graphs for any batch size and length. The graphs of decoders take and return the cache, and the
    included example.py generates text with only onnxruntime, numpy and tokenizers.

    `--to sentence-transformers` also writes the pooling and normalization of an encoder, so that vectors equal those
    of tfkit embed.

    `--to peft` writes only the adapter of a run with train.adapter. Load it with the exported model that training
    started from.
    """
    if pooling is not None and form != SENTENCES:
        raise UsageError(f"--pooling is an option of --to {SENTENCES}")
    for name, value in (("opset", opset), ("quantize", quantize)):
        if value is not None and form != ONNX:
            raise UsageError(f"--{name} is an option of --to onnx")
    loaded = reading.run(run, "cpu")
    if form == ONNX:
        lines = list(_to_onnx(loaded, folder, force, int(opset or OPSETS[1]), quantize))
    elif form == PEFT:
        from tfkit.interop.huggingface.adapters import export_adapter

        lines = [f'Load: peft.PeftModel.from_pretrained(model, "{export_adapter(loaded, folder, force)}")']
    else:
        lines = list(_to_transformers(loaded, folder, force, pooling, form == SENTENCES))
    from tfkit.interop.hub import LocalPaths

    lines += filter(None, [str(LocalPaths.of(loaded))])
    files = sorted(str(file.relative_to(folder)) for file in Path(folder).rglob("*") if file.is_file())
    data = {"folder": folder, "format": form, "files": files, "notes": lines}
    echo_data(data, lambda _: echo("\n".join(lines)))


def _to_transformers(run: Run, folder: str, force: bool, pooling: str | None, sentences: bool) -> Iterator[str]:
    """Export for transformers, and yield what to print."""
    from tfkit.interop.huggingface.exporting import export_model
    from tfkit.runs.kept import KEPT, sentences_in

    if sentences and sentences_in(run.folder / KEPT) is None:
        pooling = pooling or "mean"
    exported = export_model(run, folder, force, pooling)
    if exported.family_config is None:
        yield f"{exported.folder}: not an architecture of transformers; the folder includes tfkit's code"
        yield from (f"  {fault}" for fault in exported.why)
    else:
        yield f"{exported.folder}: {exported.family_config.config['model_type']} ({exported.family_config.head_class})"
        if version := exported.family_config.config.get("transformers_version"):
            yield f"  needs transformers {version} or later; older versions compute other rotary positions"
    more = ", trust_remote_code=True" * (exported.family_config is None)
    own = f"transformers.{exported.auto_class}.from_pretrained"
    yield f'Load: {"sentence_transformers.SentenceTransformer" if sentences else own}("{exported.folder}"{more})'


def _to_onnx(run: Run, folder: str, force: bool, opset: int, quantize: str | None) -> Iterator[str]:
    """Export to ONNX, and yield what to print."""
    from tfkit.interop.onnx.exporting import export_onnx
    from tfkit.reports.counts import count

    total = count(run.blueprint).total
    exported = export_onnx(run, folder, force, opset, quantize, vars(total))
    for name, size in exported.sizes.items():
        yield f"{exported.path / name}: {size / 1e6:,.1f} MB"
    if quantize is not None:
        yield f"{sum(exported.sizes.values()) / exported.full:.3f} of the {exported.full / 1e6:,.1f} MB in float32"
    if exported.whole_text:
        yield "the decoder's cache is not exported: the whole text is recomputed for each new token"
    yield f"Compare: tfkit verify {run.folder} --against {exported.path}"


@click.command("verify")
@click.argument("run", type=RUN)
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
@click.pass_context
@reads_run
def verify_command(
    context: click.Context,
    run: str,
    against: str,
    text: str | None,
    tolerance: float,
    provider: str | None,
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
        echo_data(files_verdict.as_data(), lambda _: _print_files(files_verdict))
        context.exit(NO if files_verdict.failures else 0)
    from tfkit.interop.huggingface.verifying import verify

    verdict = verify(reading.run(run, "cpu"), against, text, tolerance, reading.trust)
    echo_data(verdict.as_data(), partial(_print, verdict))
    if not verdict.equal:
        context.exit(NO)


def _print(verdict: Verdict, console: Console) -> None:
    from rich.box import SIMPLE
    from rich.table import Table

    table = Table(box=SIMPLE, show_edge=False, pad_edge=False)
    table.add_column("")
    for heading in ("largest difference", "relative"):
        table.add_column(heading, justify="right")
    for one in verdict.differences:
        table.add_row(one.place, f"{one.largest:.2e}", f"{one.relative:.2e}")
    console.print(table)
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


def _print_files(verdict: FilesVerdict) -> None:
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


@click.command("quantize")
@click.argument("run", type=RUN)
@click.argument("out")
@click.option("--to", "form", type=click.Choice(["int8"]), default="int8", show_default=True, help="Stored dtype.")
@click.option("--split", help="Split to evaluate: test, valid or train.  [default: test, else valid]")
@click.option("--limit", type=Whole(COUNT), help="Evaluate only the first N examples.", metavar="N")
@click.option("--force", is_flag=True, help="Rename an existing run to NAME.old.")
@reads_run
def quantize_command(
    run: str,
    out: str,
    form: str,
    split: str | None,
    limit: int | None,
    force: bool,
    reading: ReadOptions,
) -> None:
    """Write RUN (a run folder) to OUT with int8 weights, and print its size and metrics before and after.

    Matrices of linear layers and embedding tables are stored as int8 with a scale per row; other weights are unchanged.
    OUT can be used like any run but not trained. On a CPU it generates text in int8; all other computations use the
    quantized weights in float32.
    """
    from tfkit.interop.quantizing import quantize_run

    with working("quantizing"):
        quantized = quantize_run(reading.run(run, "cpu"), out, force, split, limit)
    echo_data(quantized.as_data(), lambda _: _print_quantized(quantized, form))


def _print_quantized(quantized: QuantizedRun, form: str) -> None:
    before, after = quantized.bytes
    echo(f"{quantized.folder}: weights in {form}, {after:,} bytes instead of {before:,} ({after / before:.0%})")
    for name, (was, now) in quantized.scores.items():
        echo(f"{name}: {now:.6g}, before {was:.6g}")
    if not quantized.scores:
        echo("no metrics: the run has no data")
