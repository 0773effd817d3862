"""What Spark says at length is told in a line."""

import pytest

from ackgate.pipeline.running.failures import is_of_spark, message_of, not_started

TRACE = """An error occurred while calling o85.save.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times
Traceback (most recent call last):
  File "worker.py", line 1245, in main
    process()
{error}

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(Runner.scala:581)
\tat java.base/java.lang.Thread.run(Thread.java:840)
Caused by: java.io.IOException: something else
\t... 17 more
"""


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            "ackgate.errors.CorruptRecordError: ledger 3: entry 7 of f.avro is damaged at 120",
            "ledger 3: entry 7 of f.avro is damaged at 120",
        ),
        (
            "ackgate.pipeline.source.data_source.NoSuchTopicError: no topic 'a'; there is 'b'",
            "no topic 'a'; there is 'b'",
        ),
        ("ValueError: wrong", "ValueError: wrong"),
        (
            "ModuleNotFoundError: No module named 'ackgate.cursor'",
            (
                "the cluster's workers lack the package 'ackgate': ship its wheel (--py-files), or "
                "install it in their Python, in the same version"
            ),
        ),
        (
            "ModuleNotFoundError: No module named 'numpy'",
            (
                "the cluster's workers lack the package 'numpy': install ackgate[spark] in their "
                "Python, in the same versions"
            ),
        ),
        (
            'java.io.IOException: Cannot run program "/opt/python": error=2, No such file',
            "the cluster's workers have no Python at /opt/python: see --executor-python",
        ),
        (
            (
                "pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python "
                "in worker has different version: 3.12 than that in driver: 3.11, PySpark cannot run "
                "with different minor versions."
            ),
            "the cluster's workers have Python 3.12, and this is 3.11: see --executor-python",
        ),
        ("", "An error occurred while calling o85.save."),
    ],
)
def test_the_line_that_helps_is_found(error, told):
    assert message_of(TRACE.format(error=error)) == told


def test_it_never_is_a_page():
    assert len(message_of("x" * 100_000)) < 1_100
    assert message_of("\n\n") == "Spark failed and did not say why"


def test_only_sparks_own_errors_are_told_so():
    spark = type("PySparkException", (Exception,), {"__module__": "pyspark.errors.exceptions.base"})

    assert is_of_spark(spark())
    assert is_of_spark(type("Mine", (spark,), {})())
    assert not is_of_spark(ValueError())


def test_why_java_did_not_start_is_its_own_first_complaint():
    java = (
        "WARNING: Using incubator modules: jdk.incubator.vector\n"
        "Invalid maximum heap size: -Xmx1x\n"
        "Error: Could not create the Java Virtual Machine.\n"
    )

    told = not_started("[JAVA_GATEWAY_EXITED] Java gateway process exited", java)
    assert told == "Spark did not start: Invalid maximum heap size: -Xmx1x"
    told = not_started("[JAVA_GATEWAY_EXITED] Java gateway process exited", "WARNING: so what")
    assert told == "Spark did not start: [JAVA_GATEWAY_EXITED] Java gateway process exited"
    told = not_started(
        "x", 'Exception in thread "main" org.apache.spark.SparkException: No memory\n'
    )
    assert told == "Spark did not start: No memory"


def test_a_java_that_ended_is_told_though_tidying_up_fails_after_it():
    gone = type("Py4JNetworkError", (Exception,), {"__module__": "py4j.protocol"})

    def fail():
        try:
            raise gone("Answer from Java side is empty")
        finally:
            raise ConnectionRefusedError(111, "Connection refused")

    with pytest.raises(ConnectionRefusedError) as found:
        fail()

    assert is_of_spark(found.value)
    assert not is_of_spark(ConnectionRefusedError())
    for error in (found.value, gone("Answer from Java side is empty")):
        assert message_of(str(error)).startswith("Spark's Java process has ended")
