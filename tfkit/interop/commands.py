"""Commands of this room: module within tfkit.cli, group, and line in `tfkit --help`."""

COMMANDS = {
    "import": ("import_", "Using", "Import a Hugging Face model as a run."),
    "quantize": ("quantize", "Using", "Quantize a run to int8 and compare size and metrics."),
    "export": ("export", "Using", "Export a run to transformers or ONNX."),
    "verify": ("verify", "Comparing", "Compare a run with a Hugging Face model or its ONNX files."),
}
