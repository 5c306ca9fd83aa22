"""`tfkit export`: export of a run to other formats."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tfkit.cli.options import ReadOptions, reads_run
from tfkit.cli.terminal import echo
from tfkit.core.errors import UsageError
from tfkit.interop.onnx import OPSETS

if TYPE_CHECKING:
    from tfkit.run import Run

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
@click.argument("run")
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
def command(
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

    `--to onnx` writes graphs for any batch size and length. Decoders have the cache as inputs and outputs, and an
    example.py generates text with only onnxruntime, numpy and tokenizers.

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
        _to_onnx(loaded, folder, force, int(opset or OPSETS[1]), quantize)
    elif form == PEFT:
        _to_peft(loaded, folder, force)
    else:
        _to_transformers(loaded, folder, force, pooling, form == SENTENCES)
    _report_paths(loaded)


def _report_paths(run: Run) -> None:
    from tfkit.interop.local_paths import LocalPaths

    if paths := str(LocalPaths.of(run)):
        echo(paths)


def _to_transformers(run: Run, folder: str, force: bool, pooling: str | None, sentences: bool) -> None:
    from tfkit.interop.huggingface.exporting import export_model
    from tfkit.training.kept import KEPT
    from tfkit.training.sentences import sentences_in

    if sentences and sentences_in(run.folder / KEPT) is None:
        pooling = pooling or "mean"
    exported = export_model(run, folder, force, pooling)
    if exported.family_config is None:
        echo(f"{exported.folder}: not an architecture of transformers; the folder includes tfkit's code")
        for fault in exported.why:
            echo(f"  {fault}")
    else:
        echo(f"{exported.folder}: {exported.family_config.config['model_type']} ({exported.family_config.head_class})")
        if version := exported.family_config.config.get("transformers_version"):
            echo(f"  needs transformers {version} or later; older versions compute other rotary positions")
    more = ", trust_remote_code=True" * (exported.family_config is None)
    if sentences:
        echo(f'Load: sentence_transformers.SentenceTransformer("{exported.folder}"{more})')
    else:
        echo(f'Load: transformers.{exported.auto_class}.from_pretrained("{exported.folder}"{more})')


def _to_onnx(run: Run, folder: str, force: bool, opset: int, quantize: str | None) -> None:
    from tfkit.interop.onnx.exporting import export_onnx
    from tfkit.reports.counts import count

    total = count(run.blueprint).total
    exported = export_onnx(run, folder, force, opset, quantize, vars(total))
    for name, size in exported.sizes.items():
        echo(f"{exported.path / name}: {size / 1e6:,.1f} MB")
    if quantize is not None:
        echo(f"{sum(exported.sizes.values()) / exported.full:.3f} of the {exported.full / 1e6:,.1f} MB in float32")
    if exported.whole_text:
        echo("the decoder's cache is not exported: the whole text is recomputed for each new token")
    echo(f"Compare: tfkit verify {run.folder} --against {exported.path}")


def _to_peft(run: Run, folder: str, force: bool) -> None:
    from tfkit.interop.huggingface.adapters import export_adapter

    made = export_adapter(run, folder, force)
    echo(f'Load: peft.PeftModel.from_pretrained(model, "{made}")')
