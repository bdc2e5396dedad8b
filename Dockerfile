# syntax=docker/dockerfile:1
# The service in an image: docs/deploying.md. For `serve --device cuda` EXTRAS=jwt,otel,onnx-gpu adds ONNX Runtime with
# CUDA, for models with an encoder, and EXTRAS=jwt,otel,torch adds PyTorch, whose build from PyPI has CUDA on Linux, for
# all others. Both bring NVIDIA's libraries; the driver is the host's. Without them the image computes on the processor. tests/deployment lints this file and checks its sources and commands.
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ARG EXTRAS="jwt,otel"
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
RUN python3 -m venv /opt/dpserve
COPY deploy/constraints.txt deploy/constraints.txt
COPY pyproject.toml README.md LICENSE ./
COPY accounting accounting
COPY audit audit
COPY dpserve dpserve
COPY mechanisms mechanisms
COPY service service
COPY training training
RUN /opt/dpserve/bin/pip install --quiet --constraint deploy/constraints.txt ".${EXTRAS:+[$EXTRAS]}" \
    && /opt/dpserve/bin/pip check \
    && /opt/dpserve/bin/pip uninstall --quiet --yes pip setuptools \
    && mkdir -p /state/dpserve

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="dpserve" \
      org.opencontainers.image.description="Private predictions, each charged to a budget that cannot be overspent"
COPY --from=build /opt/dpserve /opt/dpserve
COPY --from=build --chown=10001:10001 /state/ /var/lib/
COPY deploy/healthcheck.py /opt/dpserve/healthcheck.py
ENV PATH=/opt/dpserve/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    HOME=/var/lib/dpserve \
    DPSERVE_HOME=/var/lib/dpserve \
    DPSERVE_HOST=0.0.0.0
WORKDIR /var/lib/dpserve
USER 10001:10001
EXPOSE 8000
VOLUME /var/lib/dpserve
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=5s --start-period=20s CMD ["python3", "/opt/dpserve/healthcheck.py"]
ENTRYPOINT ["dpserve"]
CMD ["serve"]
