# A hospital's site of a federation, from a checkout; the kit from `harmofl deploy init` is mounted, never copied:
#   docker build --file containers/site.Dockerfile --build-arg ENGINE=flower --tag harmofl-site .
#   docker run --read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges --user "$(id -u):$(id -g)" \
#     --volume "$PWD/harmofl-site:/kit" --volume /srv/images:/srv/images:ro harmofl-site
# Each kit also has a Dockerfile and a compose.yaml of its own, which install the published version that the kit asks for.
FROM python:3.11-slim
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ARG ENGINE=flower
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE CHANGELOG.md CITATION.cff SECURITY.md ./
COPY experiments experiments
COPY src src
RUN pip install --no-cache-dir --extra-index-url "$TORCH_INDEX" --constraint constraints.txt ".[$ENGINE]" \
    && useradd --uid 1000 --no-create-home harmofl
ENV HOME=/tmp PYTHONUNBUFFERED=1
# By number, so that an orchestrator sees that it is not root.
USER 1000:1000
WORKDIR /kit
ENTRYPOINT ["harmofl", "deploy"]
CMD ["start", "/kit"]
