"""The subscription types: how each shares out messages, and what else follows from the type.

Pure values. A host names one when it makes a subscription; `dispatcher` makes the state machine.

===================  ============  ==============  ==================
kind                 gate pauses?  delays obeyed?  nacks held back?
===================  ============  ==============  ==================
Shared, KeyShared    yes           yes             yes
Exclusive, Failover  no            no              no (they rewind)
===================  ============  ==============  ==================

All of it as Pulsar.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from ackgate.dispatcher.key_shared import KeySharedDispatcher
from ackgate.dispatcher.port import KeySharedMode, KeySharedPolicy
from ackgate.dispatcher.shared import SharedDispatcher
from ackgate.dispatcher.single_active import SingleActiveDispatcher

if TYPE_CHECKING:
    from ackgate.dispatcher.port import Dispatcher, DispatchLimits


@dataclass(frozen=True, slots=True)
class Shared:
    """Every entry goes to one consumer, in turn."""

    holds: ClassVar[bool] = True
    """Whether the gate pauses it, and delayed and nacked entries wait for their time."""

    due_waiting_max: ClassVar[int] = 1_000
    """With so many entries waiting for replay, no more are taken that have fallen due."""

    def dispatcher(self, limits: DispatchLimits) -> Dispatcher:
        """An empty dispatcher of this kind."""
        return SharedDispatcher(limits)


@dataclass(frozen=True, slots=True)
class KeyShared:
    """All messages of a key go to one consumer, in order."""

    mode: KeySharedMode = KeySharedMode.AUTO_SPLIT
    allow_out_of_order: bool = False

    holds: ClassVar[bool] = True
    due_waiting_max: ClassVar[int] = 25_000
    """Up to 20,000 may wait for their keys alone, which must not stop the others."""

    def dispatcher(self, limits: DispatchLimits) -> Dispatcher:
        """An empty dispatcher of this kind."""
        return KeySharedDispatcher(limits, KeySharedPolicy(self.mode, self.allow_out_of_order))


@dataclass(frozen=True, slots=True)
class Exclusive:
    """One consumer gets everything, in order; a second one is refused."""

    holds: ClassVar[bool] = False
    due_waiting_max: ClassVar[int] = 0

    def dispatcher(self, limits: DispatchLimits) -> Dispatcher:
        """An empty dispatcher of this kind."""
        return SingleActiveDispatcher(limits, is_exclusive=True, topic="")


@dataclass(frozen=True, slots=True)
class Failover:
    """One consumer at a time gets everything, in order; the others stand by."""

    topic: str = ""
    """Its full name: with the consumers' names it decides who is served."""

    partition_index: int | None = None
    """None: the topic is not a partition."""

    holds: ClassVar[bool] = False
    due_waiting_max: ClassVar[int] = 0

    def dispatcher(self, limits: DispatchLimits) -> Dispatcher:
        """An empty dispatcher of this kind."""
        return SingleActiveDispatcher(
            limits, is_exclusive=False, topic=self.topic, partition_index=self.partition_index
        )


SubscriptionKind: TypeAlias = Shared | KeyShared | Exclusive | Failover
