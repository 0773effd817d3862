"""A client of a broker's admin interface, and the credentials of a command, also for Python calls.

Edge: HTTP with the standard library. The client follows redirects to the broker that serves a
topic, whatever the method. It raises a refusal in the broker's own words.

Address, certificates and credentials of a command come from files and, through the settings, the
environment. Of each key the last one wins::

    Pulsar's client.conf  <  environment ACKGATE_CLIENT_<key>  <  options

A token belongs in the file or the environment: everybody on the machine can see options.
"""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from ackgate.config.load import client_settings
from ackgate.errors import CallerError, ConfigurationError, CorruptRecordError, StorageError
from ackgate.network import ClientTls, PemFile, is_http_address

if TYPE_CHECKING:
    import argparse
    import ssl
    from collections.abc import Mapping, Sequence

    from ackgate.broker.wire import TopicName
    from ackgate.config.load import ClientSettings

DEFAULT_URL: Final = "http://127.0.0.1:8080"
TIMEOUT_SECONDS: Final = 10.0
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
REDIRECTS_MAX: Final = 5

_OPTIONS: Final = {
    "tls_trust_certs": "tlsTrustCertsFilePath",
    "tls_certificate": "tlsCertificateFilePath",
    "tls_key": "tlsKeyFilePath",
    "auth_plugin": "authPlugin",
    "auth_params": "authParams",
}


@dataclass(frozen=True)
class AdminAccess:
    """Certificates and credentials that a command uses."""

    tls: ClientTls = field(default_factory=ClientTls)
    auth_plugin: str = ""
    """Pulsar's class name, or ``token``. Empty: no credentials."""
    auth_params: str = field(default="", repr=False)

    @cached_property
    def context(self) -> ssl.SSLContext:
        """Made once: a watching command asks for hours, and each holds all the system's roots.

        Raises `ConfigurationError`.
        """
        return self.tls.context()

    def headers(self) -> Mapping[str, str]:
        """HTTP headers with the credentials. Raises `ConfigurationError`."""
        if not self.auth_plugin:
            return {}
        from ackgate.broker.security import http_headers  # noqa: PLC0415 - loads what makes tokens

        return http_headers(self.auth_plugin, self.auth_params, what="authParams")


def access_of(arguments: argparse.Namespace) -> tuple[str, AdminAccess]:
    """The broker's address, and the credentials for it. Raises `ConfigurationError`."""
    given = {
        key: str(value) for name, key in _OPTIONS.items() if (value := getattr(arguments, name))
    }
    if arguments.tls_allow_insecure:
        given["tlsAllowInsecureConnection"] = "true"
    settings = client_settings(arguments.client_config, given)
    url: str = settings["webServiceUrl"] or DEFAULT_URL if arguments.url is None else arguments.url
    return url, _access(settings)


def _access(settings: ClientSettings) -> AdminAccess:
    plugin, params = settings["authPlugin"], settings["authParams"]
    certificate, key = settings["tlsCertificateFilePath"], settings["tlsKeyFilePath"]
    if plugin.endswith("AuthenticationTls"):  # its parameters are files
        files = dict(part.partition(":")[::2] for part in params.split(",") if part)
        certificate = files.get("tlsCertFile", certificate)
        key = files.get("tlsKeyFile", key)
        plugin, params = "", ""
    return AdminAccess(
        ClientTls(
            trust=PemFile("tlsTrustCertsFilePath", settings["tlsTrustCertsFilePath"]),
            certificate=PemFile("tlsCertificateFilePath", certificate),
            key=PemFile("tlsKeyFilePath", key),
            verifies_server=not settings.switch("tlsAllowInsecureConnection", default=False),
            verifies_host_name=settings.switch("tlsEnableHostnameVerification", default=True),
        ),
        plugin,
        params,
    )


class AdminRefusedError(CallerError):
    """The broker rejected a request. The text is its reason; `status` is 400 to 499."""

    def __init__(self, reason: str, status: int) -> None:
        super().__init__(reason)
        self.status = status


class AdminClient:
    """Asks one broker's admin interface, and those that it redirects to."""

    def __init__(
        self,
        url: str,
        timeout_seconds: float = TIMEOUT_SECONDS,
        access: AdminAccess | None = None,
    ) -> None:
        """Raises `ConfigurationError` for a bad `url`, or bad files of `access`."""
        if not is_http_address(url):
            raise ConfigurationError(
                f"not the address of an admin interface, such as {DEFAULT_URL}: {url!r}"
            )
        self._url = url.rstrip("/")
        self._timeout_seconds = timeout_seconds
        self._access = access or AdminAccess()
        handlers: list[urllib.request.BaseHandler] = [_NotFollowed()]
        if access is not None or url.startswith("https:"):
            handlers.append(urllib.request.HTTPSHandler(context=self._access.context))
        self._opener = urllib.request.build_opener(*handlers)

    def get(self, *path: str) -> Any:  # noqa: ANN401 - JSON
        """GET a path below ``/admin/v2`` and parse the JSON. Raises as `ask`."""
        return self.ask("GET", *path)

    def text(self, *path: str) -> bytes:
        """GET a path below ``/admin/v2``, and return the body as it came. Raises as `ask`."""
        _, text = self._answer("GET", path, None)
        return text

    def own_text(self, *path: str) -> bytes:
        """GET a path below ``/ackgate``, where those are that Pulsar does not have.

        Returns the body.
        """
        _, text = self._answer("GET", path, None, root="ackgate")
        return text

    def ask(self, method: str, *path: str, body: object = None, root: str = "admin/v2") -> Any:  # noqa: ANN401 - JSON
        """Send a request below `root`. Returns the parsed JSON, or None for an empty body.

        Raises `AdminRefusedError`, `StorageError` (no answer, or the broker's fault),
        `CorruptRecordError` (a strange answer).
        """
        return _read(*self._answer(method, path, body, root=root))

    def _answer(
        self, method: str, path: Sequence[str], body: object, *, root: str = "admin/v2"
    ) -> tuple[str, bytes]:
        """The URL that answered, after any redirects, and the body."""
        url = "/".join((self._url, root, *path))
        for _ in range(REDIRECTS_MAX):
            text, location = self._once(method, url, body)
            if location is None:
                if len(text) > ANSWER_BYTES_MAX:
                    raise CorruptRecordError(f"{url} answers more than {ANSWER_BYTES_MAX} bytes")
                return url, text
            if url.startswith("https:") and not location.startswith("https:"):
                raise StorageError(f"{url} leads to {location}, which is in clear: not followed")
            url = location
        raise StorageError(f"{url}: sent on {REDIRECTS_MAX} times")

    def _once(self, method: str, url: str, body: object) -> tuple[bytes, str | None]:
        """Send one request. Returns the body and None, or the location of a redirect."""
        data = None if body is None else json.dumps(body).encode()
        headers = dict(self._access.headers())
        if data is not None:
            headers["Content-Type"] = "application/json"
        request = urllib.request.Request(  # noqa: S310 - the scheme was checked
            url, data=data, headers=headers, method=method
        )
        try:
            with self._opener.open(request, timeout=self._timeout_seconds) as response:
                text = response.read(ANSWER_BYTES_MAX + 1)
                if response.length and len(text) <= ANSWER_BYTES_MAX:
                    raise StorageError(f"the answer of {self._url} ended in the middle")
        except urllib.error.HTTPError as error:
            with error:
                location = error.headers.get("Location")
                if error.code == 307 and location is not None and is_http_address(location):
                    return b"", location
                raise _refusal(error) from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            raise StorageError(f"no answer from {self._url}: {reason}") from error
        except http.client.IncompleteRead as error:
            raise StorageError(f"the answer of {self._url} ended in the middle") from error
        except http.client.HTTPException as error:
            raise StorageError(
                f"{self._url} does not speak HTTP ({type(error).__name__}): is it the admin port?"
            ) from error
        return text, None


class _NotFollowed(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: urllib follows only some, and loses the method and body of others."""

    def redirect_request(self, *_: object) -> None: ...


def _read(url: str, text: bytes) -> Any:  # noqa: ANN401 - JSON
    if not text:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorruptRecordError(f"{url} does not answer in JSON: {error}") from error


def _refusal(error: urllib.error.HTTPError) -> AdminRefusedError | StorageError:
    try:
        reason = str(json.loads(error.read(ANSWER_BYTES_MAX))["reason"])
    except (ValueError, KeyError, TypeError, RecursionError, OSError, http.client.HTTPException):
        reason = f"{error.url} answers {error.code} {error.reason}"
    return AdminRefusedError(reason, error.code) if error.code < 500 else StorageError(reason)


def path_of(name: TopicName) -> str:
    """Path of a topic below ``/admin/v2``."""
    parts = (name.tenant, name.namespace, name.local_name)
    return "/".join(("persistent", *(quote(part, safe="") for part in parts)))


def parts_of(broker: AdminClient, name: TopicName) -> list[TopicName]:
    """The partitions of a topic; the topic itself if it has none. Raises as `AdminClient.ask`."""
    answered = broker.get(path_of(name), "partitions")
    count = answered.get("partitions") if isinstance(answered, dict) else None
    if type(count) is not int:
        raise CorruptRecordError("the broker's answer has no partitions")
    return [name.partition(index) for index in range(count)] or [name]
