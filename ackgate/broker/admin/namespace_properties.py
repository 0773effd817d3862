"""Properties that users attach to a namespace. Edge: they stand beside its policies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ackgate.broker.admin.http.call import DONE, NOTHING, Reply, json_reply, properties_in
from ackgate.broker.admin.http.refusals import RefusedError
from ackgate.broker.admin.http.router import BODY_BYTES_MAX, Route
from ackgate.broker.cluster import NAMESPACE_PROPERTIES, namespace_policy_path

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ackgate.broker.admin.http.call import Call


async def get_properties(call: Call) -> Reply:
    """The properties of a namespace."""
    return json_reply(await _stored(call))


async def add_properties(call: Call) -> Reply:
    """Set these properties; others stay."""
    added = properties_in(call.json())
    await _change(call, lambda present: {**present, **added})
    return DONE


async def clear_properties(call: Call) -> Reply:
    """Remove all properties of a namespace."""
    await _change(call, lambda _: {})
    return DONE


async def get_property(call: Call) -> Reply:
    """The value of a property, as plain text; an empty body if it is not set."""
    return _text((await _stored(call)).get(call.parameters["key"]))


async def set_property(call: Call) -> Reply:
    """Set one property."""
    key, value = call.parameters["key"], call.parameters["value"]
    await _change(call, lambda present: {**present, key: value})
    return DONE


async def remove_property(call: Call) -> Reply:
    """Remove one property. Returns the value that it had, as `GET`."""
    key = call.parameters["key"]
    value = (await _stored(call)).get(key)
    await _change(call, lambda present: {k: v for k, v in present.items() if k != key})
    return _text(value)


async def _stored(call: Call) -> Mapping[str, str]:
    await call.require_namespace()
    stored = await call.broker.services.policies.load(namespace_policy_path(call.namespace_name))
    properties: Mapping[str, str] = stored.get(NAMESPACE_PROPERTIES, {})
    return properties


async def _change(call: Call, changed: Callable[[Mapping[str, str]], Mapping[str, str]]) -> None:
    await call.require_namespace()

    def changes(stored: Mapping[str, Mapping[str, str]]) -> dict[str, object]:
        properties = properties_in(changed(stored.get(NAMESPACE_PROPERTIES, {})))
        if sum(map(len, (*properties, *properties.values()))) > BODY_BYTES_MAX:
            raise RefusedError(
                412, f"properties of a namespace have at most {BODY_BYTES_MAX} characters"
            )
        return {NAMESPACE_PROPERTIES: properties or None}

    policies = call.broker.services.policies
    await policies.amend(namespace_policy_path(call.namespace_name), changes)


def _text(value: str | None) -> Reply:
    return NOTHING if value is None else Reply(200, value.encode(errors="replace"))


_NAMESPACE: Final = "/admin/v2/namespaces/{tenant}/{namespace}"
_PROPERTY: Final = f"{_NAMESPACE}/property/{{key}}"

ROUTES: Final = (
    Route("GET", f"{_NAMESPACE}/properties", get_properties),
    Route("PUT", f"{_NAMESPACE}/properties", add_properties),
    Route("DELETE", f"{_NAMESPACE}/properties", clear_properties),
    Route("GET", _PROPERTY, get_property),
    Route("PUT", f"{_PROPERTY}/{{value}}", set_property),
    Route("DELETE", _PROPERTY, remove_property),
)
