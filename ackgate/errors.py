"""Every exception that ackgate raises on purpose, in one tree, sorted by whose fault it is.

====================  ==============================  =====================================
class                 whose fault                     does retrying help?
====================  ==============================  =====================================
ConfigurationError    the deployer, while starting    no: fix the setting
CallerError           the calling code, the client    no: fix the call
StorageError          the world outside (disk, net)   perhaps, later
OwnershipError        none: there is another owner    never: stop and look up the new owner
CorruptRecordError    the stored bytes                no: another copy may help
InternalError         ours                            no: report it
====================  ==============================  =====================================

The root is never raised itself. Foreign exceptions (``OSError``, ``sqlite3.Error``) are translated
once, at the edge that met them, with ``raise ... from``.
"""

from __future__ import annotations


class AckGateError(Exception):
    """Base of all deliberate errors. Never raised itself."""


class ConfigurationError(AckGateError, ValueError):
    """A setting is impossible. Names source, key and value, and says what is allowed."""


class MissingExtraError(ConfigurationError, ImportError):
    """Something optional is not installed. Names the module, and the extra that brings it."""


class CallerError(AckGateError):
    """The caller broke a rule. Nothing was changed."""


class PositionError(CallerError, ValueError):
    """A position is malformed, unknown, or out of range."""


class CursorClosedError(CallerError):
    """The cursor (or its store) was closed; it takes no more changes."""


class ClosedHandleError(CallerError):
    """A ledger handle, client or store was used after it was closed."""


class ConsumerBusyError(CallerError):
    """An Exclusive subscription has its consumer already."""


class ConsumerAssignError(CallerError):
    """A Key_Shared consumer's hash ranges or policy do not fit the subscription's."""


class NoSuchNodeError(CallerError, LookupError):
    """The metadata node does not exist."""


class NodeExistsError(CallerError):
    """The metadata node exists already."""


class NodeTooLargeError(CallerError, ValueError):
    """The value does not fit under the store's size guard. It was never sent."""


class StorageError(AckGateError):
    """The world outside failed. Retrying may help."""


class LedgerWriteError(StorageError):
    """An add did not reach its ack quorum. The handle takes no more adds."""


class NotEnoughBookiesError(StorageError):
    """Fewer bookies can be written than the ensemble needs."""


class BookieRefusedError(StorageError, ConfigurationError):
    """A bookie cannot be used as configured: TLS, authentication, or something else listens there.

    Another bookie may do; asking this one again does not help.
    """


class DiskFullError(StorageError):
    """No room for messages. Sends succeed again once there is room; acks and reads still work."""


class MetadataStoreError(StorageError):
    """The metadata store could not be reached or failed."""


class MetadataDiskFullError(MetadataStoreError, DiskFullError):
    """The disk of the metadata store is full: nothing was written."""


class StoreSuspendedError(MetadataStoreError):
    """The session to the metadata store is suspended: wait, do not write."""


class OutcomeUnknownError(MetadataStoreError):
    """The connection broke while a write was under way: it was done, or was not. Read to find out."""


class PersistTimeoutError(StorageError):
    """An ack is applied in memory but did not become durable in time."""


class OwnershipError(AckGateError):
    """There is another owner now. Stop; never retry."""


class LedgerFencedError(OwnershipError):
    """The ledger was fenced by a new owner. The outcome of adds in flight is unknown."""


class SessionLostError(OwnershipError):
    """The session to the metadata store expired, and with it all that it owned."""


class MetadataConflictError(OwnershipError):
    """The node's version is not the expected one: there was another write."""


class DataDirectoryBusyError(OwnershipError):
    """Another process holds the data directory. Names it."""


class CorruptRecordError(AckGateError):
    """Stored bytes are not what was written. Names file or ledger, and place."""


class UnknownFormatError(CorruptRecordError):
    """The bytes are whole, but of a format that this build does not read: a newer one wrote them."""


class NoSuchLedgerError(CorruptRecordError, LookupError):
    """The ledger is referred to but does not exist (any more)."""


class LedgerGivenUpError(NoSuchLedgerError):
    """The ledger was deleted, and some of its files may still be there."""


class NoSuchEntryError(CorruptRecordError, LookupError):
    """No bookie has a valid copy of the entry."""


class DigestMismatchError(CorruptRecordError):
    """An entry's digest does not match its bytes, or was made with another password."""


class WrongPasswordError(DigestMismatchError, ConfigurationError):
    """The ledger was created with another password. Nothing was read from its bookies."""


class InternalError(AckGateError):
    """A bug in ackgate."""


class IllegalTransitionError(InternalError):
    """A state machine got an event that its state does not allow. Nothing was changed."""
