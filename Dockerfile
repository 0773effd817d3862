# The broker as an image: what `make install` makes, without the development tools.

FROM python:3.11.13-slim-bookworm AS build
WORKDIR /source
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY ackgate ackgate
RUN python -m venv /opt/ackgate \
 && PIP_CONSTRAINT=constraints.txt /opt/ackgate/bin/pip install --no-cache-dir '.[broker,zookeeper,bookkeeper,client]'

FROM python:3.11.13-slim-bookworm
COPY --from=build /opt/ackgate /opt/ackgate
ENV PATH=/opt/ackgate/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
RUN useradd --system --user-group --uid 10001 --no-create-home ackgate \
 && install --directory --owner=ackgate --group=ackgate /data /bookies
# As a number: Kubernetes cannot see that a name is not root.
USER 10001:10001
VOLUME /data
EXPOSE 6650 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=5s --start-period=5s --retries=12 \
    CMD ["python", "-c", "import urllib.request as web; web.urlopen('http://127.0.0.1:8080/admin/v2/brokers/health', timeout=3)"]
CMD ["ackgate", "broker", "--data-dir", "/data", "--bind", "0.0.0.0"]
