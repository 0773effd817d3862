"""What may be delivered, to whom and when: the gate, and a dispatcher for each kind of subscription.

Pure. Rooms within, each with a face of its own, for what waits until its time:

    delayed   the port of delayed trackers, and the trackers that live in memory
    buckets   the delayed tracker that keeps most of its entries in storage (PIP-195)
    nacks     negatively acknowledged entries (PIP-393)
    held      the store of positions by time, under all of these
    timing    timing wheels and a purgatory (Kafka), for whatever a host waits for
"""

from ackgate.dispatcher.gate import (
    Gate,
    GateSettings,
    GateStatistics,
    PauseReason,
    gate_settings,
)
from ackgate.dispatcher.key_shared import (
    KeySharedDispatcher,
)
from ackgate.dispatcher.keys import (
    resolve_key,
)
from ackgate.dispatcher.kinds import (
    Exclusive,
    Failover,
    KeyShared,
    Shared,
    SubscriptionKind,
)
from ackgate.dispatcher.port import (
    NOTHING_READ,
    ActiveConsumerChanged,
    Assignment,
    ConsumerSpec,
    ConsumerStatistics,
    Dispatcher,
    DispatcherStatistics,
    DispatchLimits,
    Effect,
    EntriesRead,
    KeySharedMode,
    KeySharedPolicy,
    MessageChunk,
    Read,
    ReadFrom,
    ReadKind,
    Rewind,
)
from ackgate.dispatcher.shared import (
    SharedDispatcher,
)
from ackgate.dispatcher.single_active import (
    SingleActiveDispatcher,
)

__all__ = [
    "NOTHING_READ",
    "ActiveConsumerChanged",
    "Assignment",
    "ConsumerSpec",
    "ConsumerStatistics",
    "DispatchLimits",
    "Dispatcher",
    "DispatcherStatistics",
    "Effect",
    "EntriesRead",
    "Exclusive",
    "Failover",
    "Gate",
    "GateSettings",
    "GateStatistics",
    "KeyShared",
    "KeySharedDispatcher",
    "KeySharedMode",
    "KeySharedPolicy",
    "MessageChunk",
    "PauseReason",
    "Read",
    "ReadFrom",
    "ReadKind",
    "Rewind",
    "Shared",
    "SharedDispatcher",
    "SingleActiveDispatcher",
    "SubscriptionKind",
    "gate_settings",
    "resolve_key",
]
