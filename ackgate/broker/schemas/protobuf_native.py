"""Is the definition of a PROTOBUF_NATIVE schema valid?

Pure. It is a JSON object of Pulsar's: the files with the message type and all that it uses, as a
``FileDescriptorSet`` in base64, and which of them is the one. That the files fit together is not checked.
"""

from __future__ import annotations

import base64
import json

from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError

from ackgate.broker.wire import IncompatibleSchemaError


def check_message_type(definition: bytes) -> None:
    """Raise `IncompatibleSchemaError` unless the definition has the message type that it names."""
    try:
        given = json.loads(definition)
        files = FileDescriptorSet.FromString(
            base64.b64decode(given["fileDescriptorSet"], validate=True)
        )
        file_name, name = given["rootFileDescriptorName"], given["rootMessageTypeName"]
        is_there = any(_has(each, name) for each in files.file if each.name == file_name)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, DecodeError) as error:
        raise IncompatibleSchemaError(f"not a PROTOBUF_NATIVE schema: {error!r:.200}") from None
    if not is_there:
        raise IncompatibleSchemaError(
            f"not a PROTOBUF_NATIVE schema: no message type {name!r:.80} in {file_name!r:.80}"
        )


def _has(file: FileDescriptorProto, name: str) -> bool:
    inside: FileDescriptorProto | DescriptorProto = file
    for part in name.removeprefix(f"{file.package}." if file.package else "").split("."):
        types = (
            inside.message_type if isinstance(inside, FileDescriptorProto) else inside.nested_type
        )
        found = next((each for each in types if each.name == part), None)
        if found is None:
            return False
        inside = found
    return True
