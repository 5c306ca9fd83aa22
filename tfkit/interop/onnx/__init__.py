"""Export to ONNX: graphs of a model, their folder, and the comparison with the run."""

OPSETS = (18, 23)  # torch's default opset, and the first opset with an Attention operator
METADATA = "metadata.json"  # file that identifies an ONNX folder
PROVIDERS = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
}
