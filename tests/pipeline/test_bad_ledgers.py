"""Ledgers that are none: one line names the file, and nothing is left."""

from __future__ import annotations

import os

import fastavro

from ackgate.__main__ import main


def test_a_ledger_that_cannot_be_read_is_named(pipeline, tmp_path, capsys):
    data = tmp_path / "data"
    words = ["--messages", "40", "--seed", "1", "--acked-share", "0.5", "--holes", "5"]
    assert main(["pipeline", "generate", "--data-dir", str(data), *words]) == 0
    schema = {"type": "record", "name": "Photo", "fields": [{"name": "title", "type": "string"}]}
    for path in data.rglob("*.avro"):
        with path.open("wb") as file:
            fastavro.writer(file, schema, [{"title": "sunset"}])
    capsys.readouterr()

    code = pipeline("ack-stats", "--data-dir", data, "--output", tmp_path / "out")

    told = capsys.readouterr()
    assert code == 1
    assert told.out == ""
    line = told.err.splitlines()[-1]
    assert line.startswith("ackgate: ")
    assert ".avro: a foreign Avro file" in line
    assert "\tat " not in told.err
    assert os.listdir(tmp_path) == ["data"]
