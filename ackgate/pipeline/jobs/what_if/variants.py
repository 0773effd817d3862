"""The variants of a what-if: the recorded settings, and changes of them.

Pure, except that it reads the file of ``--variants``. Each combination of the values in ``--set``
is a variant, and so is each one that the file names. The recorded settings are always the first
variant, with which all others are compared.

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
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from pathlib import Path

RECORDED: Final = "recorded"
"""Name of the variant that changes no setting."""

VARIANTS_MAX: Final = 1_000

PACE_KEYS: Final = frozenset(
    {
        "ackPersistLingerMs",
        "fallbackRateLimit",
        "managedLedgerCursorPositionFlushSeconds",
        "managedLedgerDefaultMarkDeleteRateLimit",
    }
)
"""Settings that decide when a cursor is written."""

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
"""Settings that decide what a write contains."""

WRITE_KEYS: Final = PACE_KEYS | RECORD_KEYS
"""Variants that change these alike write the same records at the same moments."""

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

KEYS: Final = WRITE_KEYS | GATE_KEYS | DELAY_KEYS
"""Settings that a variant may change. Any other would change what consumers do."""

TAKEN_KEYS: Final = KEYS | {
    "acknowledgmentAtBatchIndexLevelEnabled",
    "delayedDeliveryEnabled",
    "maxEntryBytes",
}
"""Settings that a replay takes from the recording, unless a variant changes them."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A set of changes to the recorded settings."""

    name: str
    changes: Mapping[str, str] = field(default_factory=dict)
    """Name of the setting in broker.conf -> new value."""

    def settings(self, recorded: Mapping[str, str]) -> Settings:
        """Return the recorded settings with this variant's changes.

        Raises `ConfigurationError`, naming the variant, if they are invalid together.
        """
        given = {
            key: Given(text, "recorded") for key, text in recorded.items() if key in TAKEN_KEYS
        }
        changes = {key: Given(text, f"variant {self.name}") for key, text in self.changes.items()}
        try:
            return Settings().with_given({**given, **changes})
        except ConfigurationError as error:
            raise ConfigurationError(f"variant {self.name} cannot be: {error}") from error

    def changes_of(self, keys: Collection[str]) -> tuple[tuple[str, str], ...]:
        """Its changes among these settings. They hold whatever the recorded settings become."""
        return tuple(sorted(each for each in self.changes.items() if each[0] in keys))

    def is_paced(self, recorded: Mapping[str, str]) -> bool:
        """Whether it changes a setting of `PACE_KEYS`, and so the moments of writes."""
        now, then = self.settings(recorded).texts(), Variant(RECORDED).settings(recorded).texts()
        return any(now[key] != then[key] for key in PACE_KEYS)


def variants_of(grid: Sequence[str], file: Path | None) -> tuple[Variant, ...]:
    """Return all variants of ``--set`` and ``--variants``, after the recorded settings.

    Raises `ConfigurationError` for invalid names and values, duplicate names and too many variants.
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
    """Read variants from JSON (name -> settings), or one from a broker.conf (its `KEYS` only)."""
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
        # If the variant does not set the limit, only the recording tells whether the mark is below.
        limit = "managedLedgerMaxUnackedRangesToPersist"
        defaults[limit] = str(2**31 - 1)
    variant.settings(defaults)
