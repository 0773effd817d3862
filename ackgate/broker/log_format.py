"""Log lines as ``key=value`` pairs: one line an event, for people and for machines.

``time=2026-11-21T05:27:11.582Z level=INFO logger=ackgate.broker.session message="..."``

Pure. A message is quoted as JSON, so a line break in a client's name stays inside its line. Stack
traces follow on lines of their own. Payloads are never logged: nobody passes them here.
"""

from __future__ import annotations

import json
import logging
import time


class KeyValueFormatter(logging.Formatter):
    """The format of every log line of the broker."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, and the stack trace behind it if there is one."""
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = (
            f"time={seconds}.{int(record.msecs):03d}Z level={record.levelname} "
            f"logger={record.name} message={json.dumps(record.getMessage(), ensure_ascii=False)}"
        )
        if record.exc_info:
            line = f"{line}\n{self.formatException(record.exc_info)}"
        return line
