# Training, prediction and reports on one machine, from a checkout:
#   docker build --file containers/train.Dockerfile --tag harmofl .
#   docker run --rm --user "$(id -u):$(id -g)" --volume "$PWD:/work" harmofl train --task nuclei --method harmofl --out runs/first
# With NVIDIA GPUs build with --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu130 and run with --gpus all --shm-size 8g.
FROM python:3.11-slim
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ARG EXTRAS=full
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE CHANGELOG.md CITATION.cff SECURITY.md ./
COPY experiments experiments
COPY src src
RUN pip install --no-cache-dir --extra-index-url "$TORCH_INDEX" --constraint constraints.txt ".[$EXTRAS]" \
    && useradd --uid 1000 --no-create-home harmofl
# Whichever user runs it can write its caches, and to /work alone.
ENV HOME=/tmp HARMOFL_CACHE=/tmp/harmofl-cache PYTHONUNBUFFERED=1
# By number, so that an orchestrator sees that it is not root.
USER 1000:1000
WORKDIR /work
ENTRYPOINT ["harmofl"]
CMD ["--help"]
