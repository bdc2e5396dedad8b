"""Sessions of ONNX Runtime, which public encoders compute in, on a CPU or a CUDA device."""

from typing import Any

from dpserve.accounting.messages import Message
from dpserve.training.errors import TrainingError, extra

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
_CUDA_OPTIONS = {"cudnn_conv_algo_search": "DEFAULT", "use_tf32": "0"}


def open_session(content: bytes, device: str = "cpu", *, threads: int = 0) -> Any:
    """Return a session of ONNX Runtime for a model in one file.

    threads: how many compute one row; 0 for as many as the machine has. Raises TrainingError for a device that is not
    there, and for what is no such model.
    """
    if device not in PROVIDERS:
        raise TrainingError(f"a device is 'cpu' or 'cuda', not {device!r}")
    with extra("onnx", "an encoder"):
        import onnxruntime
    if PROVIDERS[device] not in onnxruntime.get_available_providers():
        raise TrainingError(
            Message("ONNX Runtime has no CUDA here: pip install 'dpserve[onnx-gpu]', or leave {device} out")
        )
    if device == "cuda":
        onnxruntime.preload_dlls()  # those that the extra brings
    options = onnxruntime.SessionOptions()
    options.use_deterministic_compute = True
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    try:
        provider = (PROVIDERS[device], _CUDA_OPTIONS if device == "cuda" else {})
        session = onnxruntime.InferenceSession(content, options, providers=[provider])
    except Exception as error:
        raise TrainingError(f"the encoder is no ONNX model in one file: {first_line(error)}") from error
    if session.get_providers()[0] != PROVIDERS[device]:
        raise TrainingError(Message("there is no CUDA device that ONNX Runtime can use here; leave {device} out"))
    return session


def first_line(error: Exception) -> str:
    """Return the first line of what an error says."""
    return str(error).strip().split("\n")[0]
