"""How one setting is declared: its key, default, bounds, unit, and what Pulsar does.

Pure. A setting is a field of a frozen pydantic model. Its key is the field's name in Pulsar's
spelling (``default_retention_size_in_mb`` is ``defaultRetentionSizeInMB``), so a key cannot drift
from its field. What the type does not say travels in `About`; the loader takes its error texts and
`docs/configuration.md` its tables from there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Self, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from ackgate.errors import ConfigurationError

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
    from pydantic.fields import FieldInfo
else:
    ModelMetaclass = type(BaseModel)

INT_MAX: Final = 2**31 - 1
"""Pulsar keeps most counts in a Java int; nothing here needs more."""

_OWN: Final = object()
_WORDS_IN_CAPITALS: Final = {"mb": "MB"}
_SPELT_OTHERWISE: Final = {
    "bookkeeper_tls_cert_files_refresh_duration_seconds": (
        "bookkeeperTlsCertFilesRefreshDurationSeconds"
    )
}
"""Attributes whose keys Pulsar does not spell by the rule of `key_of`."""


def key_of(attribute: str) -> str:
    """A field's key in Pulsar's spelling."""
    if attribute in _SPELT_OTHERWISE:
        return _SPELT_OTHERWISE[attribute]
    first, *rest = attribute.replace("open_id_", "openID_", 1).split("_")
    capitals = _WORDS_IN_CAPITALS | ({"tls": "TLS"} if first == "bookkeeper" else {})
    return first + "".join(capitals.get(word, word.capitalize()) for word in rest)


class About(NamedTuple):
    """What a setting declares besides its type, default and bounds."""

    unit: str
    """Unit of the value, for people. Empty for names and switches."""

    pulsar_default: object
    """Pulsar's default; ignore it for a key of our own."""

    is_own: bool
    """Whether only this broker has the key, and Pulsar does not."""

    departs_because: str
    """Why our default is not Pulsar's; empty if it is."""

    is_dynamic: bool
    """Whether it may change while the broker runs."""


class _OurErrors(ModelMetaclass):
    """Metaclass that raises our error when code makes settings by a call.

    pydantic's own validation does not call the class, so it still raises pydantic's error.
    """

    def __call__(cls, *args: Any, **values: Any) -> Any:  # noqa: ANN401, N805 - of a metaclass
        try:
            return super().__call__(*args, **values)
        except ValidationError as error:
            wrong = [
                " ".join(map(str, (*detail["loc"], detail["msg"].removeprefix("Value error, "))))
                for detail in error.errors(include_url=False, include_input=False)
            ]
            raise ConfigurationError(f"{cls.__name__}: {'; '.join(wrong)}") from error


class SettingsGroup(BaseModel, metaclass=_OurErrors):
    """Settings of one room. Frozen; made from keys or from attribute names."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=key_of,
        validate_by_name=True,
        validate_by_alias=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
        defer_build=True,  # a third of the import of an embedder
    )

    @classmethod
    def defaults(cls) -> Self:
        """All defaults. Equal to `cls()`, but pydantic builds no validator, which takes it 25 ms."""
        return cls.model_construct()


def setting(
    default: object,
    description: str,
    *,
    unit: str = "",
    pulsar: object = _OWN,
    departs: str = "",
    dynamic: bool = False,
    ge: float | None = None,
    le: float | None = None,
    is_secret: bool = False,
) -> Any:  # noqa: ANN401  # as pydantic's Field: the annotation beside it is the type
    """Declare a setting. `pulsar` is Pulsar's default (4.0); leave it out for a key of our own."""
    is_own = pulsar is _OWN
    about = About(
        unit=unit,
        pulsar_default=None if is_own else pulsar,
        is_own=is_own,
        departs_because=departs,
        is_dynamic=dynamic,
    )
    if is_secret:
        default = SecretStr(str(default))
    return Field(
        default,
        description=description,
        ge=ge,
        le=le,
        json_schema_extra={"about": about},  # type: ignore[dict-item]  # never made into JSON
    )


def about(field: FieldInfo) -> About:
    """The `About` that `setting` put into a field."""
    extra: Any = field.json_schema_extra
    found: About = extra["about"]
    return found


def is_secret(field: FieldInfo) -> bool:
    """Whether the value must never be printed."""
    return field.annotation is SecretStr


def may_be_nothing(field: FieldInfo) -> bool:
    """Whether an empty text is a value of its own, which means none."""
    return type(None) in get_args(field.annotation)


def bounds(field: FieldInfo) -> tuple[float | None, float | None]:
    """Smallest and largest value allowed."""
    lowest: float | None = None
    highest: float | None = None
    for constraint in field.metadata:
        lowest = getattr(constraint, "ge", lowest)
        highest = getattr(constraint, "le", highest)
    return lowest, highest


def allowed(field: FieldInfo) -> str:
    """Describe the allowed values in words: "a whole number from 1 to 100 (entries)"."""
    lowest, highest = bounds(field)
    words = _kind(field.annotation)
    if lowest is not None and highest is not None:
        words += f" from {lowest} to {highest}"
    elif lowest is not None:
        words += f", at least {lowest}"
    elif highest is not None:
        words += f", at most {highest}"
    unit = about(field).unit
    words += f" ({unit})" if unit else ""
    return f"{words}, or nothing" if may_be_nothing(field) else words


def _kind(annotation: object) -> str:
    if annotation is bool:
        return "true or false"
    if get_origin(annotation) is Literal:
        *others, last = get_args(annotation)
        return f"{', '.join(others)} or {last}" if others else str(last)
    if get_origin(annotation) is tuple:
        return f"a comma-separated list of {_kind(get_args(annotation)[0])}"
    members = [member for member in get_args(annotation) if member is not type(None)]
    if members:
        return _kind(members[0])
    if annotation is int:
        return "a whole number"
    if annotation is float:
        return "a number"
    return "text"
