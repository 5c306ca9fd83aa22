"""Out to ONNX: the graphs of a model, the folder they are written to, and the comparison with the run."""

OPSETS = (18, 23)  # the one that torch writes by itself, and the first with an Attention operator
METADATA = "metadata.json"  # by which such a folder is known
PROVIDERS = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
}
