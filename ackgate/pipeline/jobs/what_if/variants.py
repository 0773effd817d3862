"""Settings to replay recorded traffic under: the recorded ones, and changes of them.

Pure, but for reading the file of variants. Every combination of what ``--set`` lists is a variant, and
each of those that ``--variants`` names; the recorded settings themselves are always one, by which all
others are measured.

    --set managedLedgerMaxUnackedRangesToPersist=100,1000 --set ackPersistLingerMs=2,50    four variants
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any, Final

from ackgate.config.properties import parse_properties
from ackgate.config.settings import FIELDS, Given, Settings, unknown_key
from ackgate.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

RECORDED: Final = "recorded"
"""Name of the variant that changes nothing."""

VARIANTS_MAX: Final = 1_000

PACE_KEYS: Final = frozenset(
    {
        "ackPersistLingerMs",
        "fallbackRateLimit",
        "managedLedgerCursorPositionFlushSeconds",
        "managedLedgerDefaultMarkDeleteRateLimit",
    }
)
"""They decide when a cursor is written."""

RECORD_KEYS: Final = frozenset(
    {
        "cursorDeltaBytesPerSnapshotMax",
        "cursorDeltasPerSnapshotMax",
        "cursorRecordChunkBytes",
        "cursorRecoveryScanEntriesMax",
        "managedCursorInfoCompressionThresholdInBytes",
        "managedCursorInfoCompressionType",
        "managedLedgerCursorMaxEntriesPerLedger",
        "managedLedgerCursorRolloverTimeInSeconds",
        "managedLedgerMaxBatchDeletedIndexToPersist",
        "managedLedgerMaxUnackedRangesToPersist",
        "managedLedgerMaxUnackedRangesToPersistInMetadataStore",
        "metadataStoreMaxNodeBytes",
    }
)
"""They decide what a write holds."""

GATE_KEYS: Final = frozenset(
    {
        "ackStatePersistFailurePauseSeconds",
        "dispatcherPauseOnAckStatePersistentEnabled",
        "dispatcherPauseOnAckStateResumeRanges",
        "dispatcherPauseOnAckStateStrictEnabled",
    }
)

DELAY_KEYS: Final = frozenset(
    {
        "delayedDeliveryMaxBucketAgeSeconds",
        "delayedDeliveryMaxIndexCountPerBucket",
        "delayedDeliveryMaxIndexesPerBucketSnapshotSegment",
        "delayedDeliveryMaxNumBuckets",
        "delayedDeliveryMaxTimeStepPerBucketSnapshotSegmentSeconds",
        "delayedDeliveryMinIndexCountPerBucket",
        "delayedDeliveryTickTimeMillis",
        "delayedDeliveryTrackerFactoryClassName",
        "isDelayedDeliveryDeliverAtTimeStrict",
    }
)

KEYS: Final = PACE_KEYS | RECORD_KEYS | GATE_KEYS | DELAY_KEYS
"""What may be changed: all else, like how much is read at once, changes what consumers do."""

TAKEN_KEYS: Final = KEYS | {
    "acknowledgmentAtBatchIndexLevelEnabled",
    "delayedDeliveryEnabled",
    "maxEntryBytes",
}
"""Settings that a replay takes from the recording, unless a variant changes them."""


@dataclass(frozen=True, slots=True)
class Variant:
    """Settings that differ from the recorded ones."""

    name: str
    changes: Mapping[str, str] = field(default_factory=dict)
    """By their names in broker.conf."""

    def settings(self, recorded: Mapping[str, str]) -> Settings:
        """These settings, on top of the recorded ones.

        Raises `ConfigurationError` naming the variant.
        """
        given = {
            key: Given(text, "recorded") for key, text in recorded.items() if key in TAKEN_KEYS
        }
        changes = {key: Given(text, f"variant {self.name}") for key, text in self.changes.items()}
        try:
            return Settings().with_given({**given, **changes})
        except ConfigurationError as error:
            raise ConfigurationError(f"variant {self.name} cannot be: {error}") from error

    def is_paced(self, recorded: Mapping[str, str]) -> bool:
        """Whether it writes at other moments than the recording."""
        now, then = self.settings(recorded).texts(), Variant(RECORDED).settings(recorded).texts()
        return any(now[key] != then[key] for key in PACE_KEYS)


def variants_of(grid: Sequence[str], file: Path | None) -> tuple[Variant, ...]:
    """All that were asked for, the recorded settings first.

    Raises `ConfigurationError` for names and values that cannot be, before anything is read.
    """
    found = [Variant(RECORDED), *_of_grid(grid), *(_of_file(file) if file is not None else ())]
    if len(found) > VARIANTS_MAX:
        raise ConfigurationError(f"{len(found)} variants are more than {VARIANTS_MAX}")
    names = [variant.name for variant in found]
    for name in names:
        if names.count(name) > 1:
            raise ConfigurationError(f"there are several variants with the name {name}")
    for variant in found:
        _check(variant)
    return tuple(found)


def _of_grid(grid: Iterable[str]) -> list[Variant]:
    axes: dict[str, list[str]] = {}
    for word in grid:
        key, sign, texts = (part.strip() for part in word.partition("="))
        values = [text.strip() for text in texts.split(",") if text.strip()]
        if not sign or not values:
            raise ConfigurationError(f"--set {word}: must be NAME=VALUE[,VALUE...]")
        axes.setdefault(key, []).extend(value for value in values)
    if not axes:
        return []
    return [
        Variant(
            ",".join(f"{key}={value}" for key, value in zip(axes, values, strict=True)),
            dict(zip(axes, values, strict=True)),
        )
        for values in product(*axes.values())
    ]


def _of_file(path: Path) -> list[Variant]:
    """JSON, names to objects of settings; or a broker.conf, of which those count that can change."""
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".conf":
            texts = {each.key: each.value.strip() for each in parse_properties(text, str(path))}
            return [Variant(path.name, {key: texts[key] for key in sorted(KEYS & texts.keys())})]
        content = json.loads(text)
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigurationError(f"{path}: is no JSON: {error}") from error
    if not isinstance(content, dict) or not all(isinstance(v, dict) for v in content.values()):
        raise ConfigurationError(f"{path}: must be an object of names to objects of settings")
    return [
        Variant(name, {key: _text(value) for key, value in changes.items()})
        for name, changes in content.items()
    ]


def _text(value: Any) -> str:  # noqa: ANN401 - of JSON
    return json.dumps(value) if isinstance(value, bool) else str(value)


def _check(variant: Variant) -> None:
    where = f"variant {variant.name}"
    for key in variant.changes:
        if key not in FIELDS:
            raise ConfigurationError(unknown_key(key, where))
        if key not in KEYS:
            raise ConfigurationError(
                f"{where}: {key} is nothing that a replay can change; it can change "
                + ", ".join(sorted(KEYS))
            )
    defaults = Settings().texts()
    if "dispatcherPauseOnAckStateResumeRanges" in variant.changes:
        # Whether it lies below the limit depends on what was recorded, if the limit is not given.
        limit = "managedLedgerMaxUnackedRangesToPersist"
        defaults[limit] = str(2**31 - 1)
    variant.settings(defaults)


def documented_keys() -> Iterable[tuple[str, str]]:
    """What may be changed, with a line on each."""
    return ((key, FIELDS[key].description or "") for key in sorted(KEYS))
