"""Commands of this room: module within tfkit.cli, group, and line in `tfkit --help`."""

COMMANDS = {
    "import": ("interop", "Using", "Import a Hugging Face model as a run."),
    "quantize": ("interop", "Using", "Quantize a run to int8 and compare size and metrics."),
    "export": ("interop", "Using", "Export a run to transformers or ONNX."),
    "verify": ("interop", "Comparing", "Compare a run with a Hugging Face model or its ONNX files."),
}
