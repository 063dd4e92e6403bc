# An engine's image for CPU: vLLM and NIXL, by hash; about 7 GB. Context: the repository's folder (docker build -f connector/cpu-engine.Dockerfile .).
# Upstream publishes none that holds NIXL. The connector is not in it: it comes into every engine when a pod starts.
ARG BASE_IMAGE=python:3.11-slim

FROM ${BASE_IMAGE}
# What PyTorch's and vLLM's libraries link to, where the base has them not.
RUN ldconfig -p | grep -q libnuma.so.1 && ldconfig -p | grep -q libgomp.so.1 \
 || { apt-get update && apt-get install --yes --no-install-recommends libnuma1 libgomp1 && rm -rf /var/lib/apt/lists/*; }
WORKDIR /build
COPY connector/cpu-engine.lock requirements.lock
RUN python -m venv --without-pip /opt/vllm \
 && python -m pip --python /opt/vllm/bin/python --no-cache-dir install --require-hashes --no-deps --only-binary :all: -r requirements.lock
ENV PATH=/opt/vllm/bin:$PATH \
    HOME=/tmp \
    PYTHONUNBUFFERED=1
WORKDIR /
USER 65532:65532
ENTRYPOINT ["vllm", "serve"]
