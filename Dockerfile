# The broker as an image: what `make install` makes, without the development tools.

FROM python:3.11.13-slim-bookworm AS build
WORKDIR /source
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY ackgate ackgate
RUN python -m venv /opt/ackgate \
 && PIP_CONSTRAINT=constraints.txt /opt/ackgate/bin/pip install --no-cache-dir '.[broker,zookeeper,bookkeeper,client]'

FROM python:3.11.13-slim-bookworm
COPY --from=build /opt/ackgate /opt/ackgate
ENV PATH=/opt/ackgate/bin:$PATH PYTHONUNBUFFERED=1
RUN useradd --system --user-group --uid 10001 --no-create-home ackgate \
 && install --directory --owner=ackgate --group=ackgate /data /bookies
USER ackgate
VOLUME /data
EXPOSE 6650 8080
STOPSIGNAL SIGTERM
CMD ["ackgate", "broker", "--data-dir", "/data", "--bind", "0.0.0.0"]
