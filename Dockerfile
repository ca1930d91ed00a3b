# A server in a container. It keeps what it must in its database and in /data, and runs as nobody special.
FROM python:3.13-slim

RUN useradd --create-home --uid 10001 lastgood \
    && mkdir -p /data/work /agents && chown -R lastgood /data
WORKDIR /app
COPY requirements/run.txt requirements/build.txt requirements/
RUN pip install --no-cache-dir --require-hashes -r requirements/run.txt -r requirements/build.txt
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir --no-build-isolation --no-deps .

USER lastgood
ENV LASTGOOD_DATA_DIR=/data LASTGOOD_LISTEN=0.0.0.0:8080
EXPOSE 8080
ENTRYPOINT ["lastgood"]
CMD ["serve"]
