"""What may be delivered, to whom and when: the dispatchers and the gate. Pure."""

from ackgate.dispatcher.dispatcher import (
    NOTHING_READ,
    ActiveConsumerChanged,
    Chunk,
    ConsumerSpec,
    ConsumerStatistics,
    Delivery,
    Dispatcher,
    DispatcherStatistics,
    Effect,
    EntriesRead,
    KeySharedMode,
    KeySharedPolicy,
    Read,
    ReadFrom,
    ReadKind,
    Rewind,
)
from ackgate.dispatcher.gate import Gate, GateSettings, GateStatistics, PauseReason
from ackgate.dispatcher.key_shared import KeySharedDispatcher
from ackgate.dispatcher.limits import DispatchLimits
from ackgate.dispatcher.shared import SharedDispatcher
from ackgate.dispatcher.single_active import SingleActiveDispatcher

__all__ = [
    "NOTHING_READ",
    "ActiveConsumerChanged",
    "Chunk",
    "ConsumerSpec",
    "ConsumerStatistics",
    "Delivery",
    "DispatchLimits",
    "Dispatcher",
    "DispatcherStatistics",
    "Effect",
    "EntriesRead",
    "Gate",
    "GateSettings",
    "GateStatistics",
    "KeySharedDispatcher",
    "KeySharedMode",
    "KeySharedPolicy",
    "PauseReason",
    "Read",
    "ReadFrom",
    "ReadKind",
    "Rewind",
    "SharedDispatcher",
    "SingleActiveDispatcher",
]
