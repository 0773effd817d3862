"""An output is whole, or it is not there."""

import os

import pytest

from ackgate.errors import ConfigurationError, StorageError
from ackgate.pipeline.running.outputs import OutputExistsError, output_directory, staged_output


def test_it_appears_at_once_and_whole(tmp_path):
    output = tmp_path / "deep" / "results"

    with staged_output(output) as staging:
        (staging / "a").write_text("1")
        assert not output.exists()

    assert (output / "a").read_text() == "1"
    assert os.listdir(tmp_path / "deep") == ["results"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_after_a_failure_nothing_is_left(tmp_path, error):
    with pytest.raises(error), staged_output(tmp_path / "results") as staging:
        (staging / "a").write_text("1")
        raise error

    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("make", ["mkdir", "touch"])
def test_what_is_there_is_left_alone(tmp_path, make):
    getattr(tmp_path / "results", make)()

    with pytest.raises(OutputExistsError, match="exists"), staged_output(tmp_path / "results"):
        pytest.fail("not to be run")


def test_the_faster_run_wins(tmp_path):
    with (
        pytest.raises(OutputExistsError),
        staged_output(tmp_path / "results") as staging,
    ):
        (staging / "mine").touch()
        (tmp_path / "results").mkdir()
        (tmp_path / "results" / "theirs").touch()

    assert [path.name for path in tmp_path.rglob("*")] == ["results", "theirs"]


def test_what_a_killed_job_left_is_removed_and_that_of_a_running_one_is_not(tmp_path):
    (tmp_path / ".results.999999999-1.staging").mkdir()
    (tmp_path / ".other.999999999-1.staging").mkdir()

    with staged_output(tmp_path / "results") as running:
        with pytest.raises(StorageError), staged_output(tmp_path / "results"):
            pytest.fail("this process writes it already")
        assert running.is_dir()

    assert sorted(os.listdir(tmp_path)) == [".other.999999999-1.staging", "results"]


@pytest.mark.parametrize(
    "address",
    [
        *("s3://bucket/out", "S3://bucket/out", "s3:/bucket/out", "hdfs:///out", "gs://b/o"),
        *("simplecache::s3://bucket/out", "https://user:secret@host/out"),
    ],
)
def test_an_address_is_refused(address):
    with pytest.raises(ConfigurationError, match="is an address") as refused:
        output_directory(address)

    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("name", ["out", "./s3", "a:b", "C:", "deep/s3://x", "1s3://x"])
def test_a_path_is_a_path_whatever_its_name(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    assert output_directory(name).absolute() == tmp_path / name


@pytest.mark.parametrize("scheme", ["file:", "file://", "file://localhost", "local:"])
def test_a_path_may_be_said_to_be_one(scheme, tmp_path):
    assert output_directory(f"{scheme}{tmp_path}/out") == tmp_path / "out"


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()

    with (
        pytest.raises(StorageError, match="file/results cannot be written"),
        staged_output(tmp_path / "file" / "results"),
    ):
        pytest.fail("not to be run")
