# A server in a container: no root, and nothing is written outside /data and /tmp, so the root file system can be
# read-only (`docker run --read-only --tmpfs /tmp --init`). Every package is locked with its hashes.
FROM python:3.13-slim

RUN useradd --no-create-home --home-dir /data --uid 10001 lastgood \
    && install -d -o lastgood -m 0700 /data /data/work && mkdir /agents
WORKDIR /app
# `--build-arg REQUIREMENTS=providers` adds the clients of Anthropic, Google and Bedrock.
ARG REQUIREMENTS=run
COPY requirements requirements
RUN pip install --no-cache-dir --require-hashes -r requirements/${REQUIREMENTS}.txt -r requirements/build.txt
COPY pyproject.toml README.md LICENSE ./
COPY src src
# The build backend is the locked one from above.
RUN pip install --no-cache-dir --no-build-isolation --no-deps .

# A number: `runAsNonRoot` of Kubernetes cannot tell who a name is.
USER 10001
WORKDIR /data
VOLUME /data
ENV LASTGOOD_DATA_DIR=/data LASTGOOD_LISTEN=0.0.0.0:8080 PYTHONDONTWRITEBYTECODE=1
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8080/ready', timeout=2)"]
ENTRYPOINT ["lastgood"]
CMD ["serve"]
