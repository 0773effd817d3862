"""Whether there is what a job is to read, before Spark is started for it.

Edge: opens the metadata store, as planning a read does; reads no ledger.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ackgate.pipeline.catalogue import open_catalogue
from ackgate.pipeline.options import parse_options

if TYPE_CHECKING:
    from collections.abc import Mapping


def check_data(options: Mapping[str, str]) -> None:
    """Look for the store, the bookies, the topic and the subscription that the options name.

    Raises `ConfigurationError`, `CallerError` with near matches, `StorageError`, `CorruptRecordError`.
    """
    wanted = parse_options(options)
    with open_catalogue(wanted) as catalogue:
        topics = catalogue.topics(wanted.topics)
        if wanted.subscription is not None:
            catalogue.all_cursors(topics, wanted.subscription)
