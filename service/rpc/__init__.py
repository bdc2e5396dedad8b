"""The Open Inference Protocol over gRPC, beside HTTP."""
