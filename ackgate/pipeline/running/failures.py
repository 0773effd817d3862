"""What went wrong in Spark, in a line: our own message if there is one in it, else Spark's first.

Pure. An error raised in an executor, or in the process that plans a read, reaches the driver as the
text of a Python traceback inside a Java stack trace. What a person can act on is one line of it.
"""

from __future__ import annotations

import re
from typing import Final

from ackgate import errors

_OWN: Final = "|".join(
    sorted(
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.AckGateError)
    )
)
_OWN_LINE: Final = re.compile(
    rf"^(?:\S*: )?(?:ackgate\.[\w.]+\.)(?:{_OWN}|\w+Error): (?P<message>.+)$", re.MULTILINE
)
_PYTHON_LINE: Final = re.compile(r"^(?P<message>[\w.]+(?:Error|Exception): .+)$", re.MULTILINE)
_JAVA_FRAME: Final = re.compile(r"^\s*(?:at .+\(.*\)|\.\.\. \d+ more)\s*$")
_NO_MODULE: Final = re.compile(r"ModuleNotFoundError: No module named '(?P<module>[\w.]+)'")

_THREAD: Final = re.compile(r'^Exception in thread "[^"]*" (?:[\w.$]+: )?')
_NO_PROGRAM: Final = re.compile(r'Cannot run program "(?P<program>[^"]+)"')
_VERSIONS: Final = re.compile(
    r"Python in worker has different version: (?P<there>[\d.]+) than that in driver: (?P<here>[\d.]+)"
)
_JAVA_GONE: Final = re.compile(
    r"Answer from Java side is empty|Error while (?:sending|receiving)|Connection refused"
    r"|trying to connect to the Java server"
)
_JAVA_COMPLAINT: Final = re.compile(r"^(?:Error|Exception in thread|Invalid|Unrecognized)\b")

LINE_CHARACTERS_MAX: Final = 1_000


def message_of(text: str) -> str:
    """The line of a failure's whole text that says what happened."""
    own = _OWN_LINE.findall(text)
    if own:
        return _cut(own[-1])
    missing = _NO_MODULE.search(text)
    if missing:
        return _lacking(missing["module"].partition(".")[0])
    program = _NO_PROGRAM.search(text)
    if program:
        return (
            f"the cluster's workers have no Python at {program['program']}: see --executor-python"
        )
    versions = _VERSIONS.search(text)
    if versions:
        return (
            f"the cluster's workers have Python {versions['there']}, and this is {versions['here']}: "
            "see --executor-python"
        )
    python = _PYTHON_LINE.findall(text)
    if python:
        return _cut(python[-1])
    if _JAVA_GONE.search(text):
        return "Spark's Java process has ended: killed, or out of memory (--driver-memory)"
    lines = [line.strip() for line in text.splitlines() if not _JAVA_FRAME.match(line)]
    return _cut(next((line for line in lines if line), "Spark failed and did not say why"))


def _lacking(package: str) -> str:
    if package == "ackgate":
        way = "ship its wheel (--py-files), or install it in their Python, in the same version"
    else:
        way = "install ackgate[spark] in their Python, in the same versions"
    return f"the cluster's workers lack the package {package!r}: {way}"


def not_started(error: str, java_output: str) -> str:
    """Why there is no session: Java's own word if it ended, else Spark's."""
    lines = [line.strip() for line in java_output.splitlines()]
    for line in lines:
        if _JAVA_COMPLAINT.search(line):
            return f"Spark did not start: {_cut(_THREAD.sub('', line))}"
    return f"Spark did not start: {message_of(error)}"


def is_of_spark(error: BaseException) -> bool:
    """Whether it came out of Spark or of the bridge to it. Imports neither.

    When Java has ended, what is tidied up after that fails with an error of the system's.
    """
    at: BaseException | None = error
    while isinstance(at, ConnectionError):
        at = at.__cause__ or at.__context__
    return any(
        kind.__module__.partition(".")[0] in {"pyspark", "py4j"} for kind in type(at).__mro__
    )


def _cut(line: str) -> str:
    line = line.strip()
    return line if len(line) <= LINE_CHARACTERS_MAX else line[:LINE_CHARACTERS_MAX] + "..."
