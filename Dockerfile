# The gateway: docker build -t lengthwise:0.1.0 .
# Checked with hadolint. Engines run in images of their own (docs/guides/cluster.md).
FROM python:3.12-slim-bookworm AS build
WORKDIR /build
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim-bookworm
ARG VERSION=0.1.0
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir --find-links /wheels "lengthwise[serve]==${VERSION}" \
    && rm -rf /wheels \
    && useradd --uid 10001 --create-home lengthwise
# Machine code of the router, compiled at the first start: mount a writable folder here if the file system is read-only.
ENV LENGTHWISE_CACHE=/var/cache/lengthwise
# Huge pages for Python's objects: about a tenth less CPU time per request.
ENV PYTHONMALLOC=malloc GLIBC_TUNABLES=glibc.malloc.hugetlb=1
RUN install -d -o 10001 -g 10001 "$LENGTHWISE_CACHE"
USER 10001
EXPOSE 8080
HEALTHCHECK --start-period=60s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8080/health', timeout=2)"]
ENTRYPOINT ["lengthwise"]
CMD ["serve", "--config", "/etc/lengthwise/fleet.yaml", "--host", "0.0.0.0"]
