# Two targets:
#   docker build --target cpu  --tag relaygr:cpu  .
#   docker build --target cuda --tag relaygr:cuda .
FROM python:3.11.14-slim-bookworm AS base
ENV PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PATH=/opt/relaygr/bin:$PATH

# The slow and large part first: it changes with the version of torch alone.
FROM base AS torch-cpu
RUN python -m venv /opt/relaygr \
    && pip install --index-url https://download.pytorch.org/whl/cpu torch==2.13.0

# The wheels bring the CUDA libraries; the machine needs the driver and the NVIDIA container toolkit.
FROM base AS torch-cuda
RUN python -m venv /opt/relaygr \
    && pip install torch==2.13.0

FROM torch-cpu AS build-cpu
WORKDIR /src
COPY pyproject.toml README.md LICENSE deploy/constraints.txt ./
COPY src ./src
RUN pip install --constraint constraints.txt ".[redis,lmdb,otel]"

FROM torch-cuda AS build-cuda
WORKDIR /src
COPY pyproject.toml README.md LICENSE deploy/constraints.txt ./
COPY src ./src
RUN pip install --constraint constraints.txt ".[redis,lmdb,otel]"

FROM base AS runtime
RUN groupadd --gid 10001 relaygr \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin relaygr \
    && install --directory --owner=10001 --group=10001 /var/lib/relaygr
COPY deploy/relaygr.toml /etc/relaygr/relaygr.toml
WORKDIR /var/lib/relaygr
USER 10001:10001
EXPOSE 8080
STOPSIGNAL SIGTERM
# Of a server on its usual port; a gateway elsewhere sets the variable.
ENV RELAYGR_HEALTH_URL=http://127.0.0.1:8080/healthz
HEALTHCHECK --interval=5s --timeout=3s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen(os.environ['RELAYGR_HEALTH_URL'], timeout=2)"]
ENTRYPOINT ["relaygr"]
CMD ["serve", "--config", "/etc/relaygr/relaygr.toml"]

FROM runtime AS cuda
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=build-cuda /opt/relaygr /opt/relaygr

FROM runtime AS cpu
COPY --from=build-cpu /opt/relaygr /opt/relaygr
