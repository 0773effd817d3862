"""What every job is given."""

from __future__ import annotations

import pytest

from ackgate.pipeline.jobs.job import DataAddress


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({"path": "/data"}, "/data"),
        ({"path": "s3://me:secret@host/a,s3://me:secret@host/b"}, "s3://host/a,s3://host/b"),
        ({"path": "https://host/data?signature=secret"}, "https://host/data"),
        ({"metadataUrl": "zk:a:1,b:2/root"}, "zk:a:1,b:2/root"),
        ({}, "?"),
    ],
)
def test_an_address_is_told_without_what_is_secret(options, shown):
    address = DataAddress(options)

    assert address.path == shown
    assert "secret" not in repr(address)
