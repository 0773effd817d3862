"""Settings of authentication and authorization: who is the client, and what may it do. Pure."""

from __future__ import annotations

from typing import Final, Literal, Self

from pydantic import SecretStr, model_validator

from ackgate.config.field import INT_MAX, SettingsGroup, setting

_PROVIDERS: Final = "org.apache.pulsar.broker.authentication"
_PLUGINS: Final = "org.apache.pulsar.client.impl.auth"

TOKEN_PROVIDER: Final = f"{_PROVIDERS}.AuthenticationProviderToken"
AUTHENTICATION_DISABLED: Final = f"{_PLUGINS}.AuthenticationDisabled"

AUTHORIZATION_PROVIDER: Final = "org.apache.pulsar.broker.authorization.PulsarAuthorizationProvider"

AuthorizationProviderName = Literal[
    "org.apache.pulsar.broker.authorization.PulsarAuthorizationProvider"
]

TLS_PROVIDER: Final = f"{_PROVIDERS}.AuthenticationProviderTls"
OPENID_PROVIDER: Final = f"{_PROVIDERS}.oidc.AuthenticationProviderOpenID"
BASIC_PROVIDER: Final = f"{_PROVIDERS}.AuthenticationProviderBasic"

ProviderName = Literal[
    "org.apache.pulsar.broker.authentication.AuthenticationProviderToken",
    "org.apache.pulsar.broker.authentication.AuthenticationProviderTls",
    "org.apache.pulsar.broker.authentication.AuthenticationProviderBasic",
    "org.apache.pulsar.broker.authentication.oidc.AuthenticationProviderOpenID",
]
"""Pulsar's provider classes that this broker has, under the same names."""

PluginName = Literal[
    "org.apache.pulsar.client.impl.auth.AuthenticationDisabled",
    "org.apache.pulsar.client.impl.auth.AuthenticationToken",
]
"""The same for the credentials that brokers show each other."""

AlgorithmName = Literal["", "RS256", "RS384", "RS512", "ES256", "ES384", "ES512"]


class SecuritySettings(SettingsGroup):
    """Who may connect, and what a client may do."""

    # --- authentication

    authentication_enabled: bool = setting(
        False,
        "Clients prove who they are, on both ports, before anything else.",
        pulsar=False,
    )
    authentication_providers: tuple[ProviderName, ...] = setting(
        (),
        "How they may do so, by the names of Pulsar's classes.",
        pulsar=(),
    )
    authentication_refresh_check_seconds: int = setting(
        60,
        "How often a connection is looked at for credentials that have expired. Its client is asked for "
        "new ones, and has as long to bring them; one that cannot is closed.",
        unit="s",
        pulsar=60,
        ge=1,
        le=INT_MAX,
    )
    anonymous_user_role: str = setting(
        "",
        "Role of clients that bring no credentials. Empty: they are refused.",
        pulsar="",
    )
    authenticate_metrics_endpoint: bool = setting(
        False,
        "Readers of `/metrics` prove who they are.",
        pulsar=False,
    )
    proxy_roles: tuple[str, ...] = setting(
        (),
        "Roles that may connect on behalf of another one, which they name (the original principal). "
        "Both must be allowed what is asked for. Nobody else may name one.",
        unit="roles",
        pulsar=(),
    )
    authenticate_original_auth_data: bool = setting(
        False,
        "A proxy brings its client's credentials, and they are checked as the client's own would be.",
        pulsar=False,
    )

    # --- authorization

    authorization_enabled: bool = setting(
        False,
        "Roles may do what they were granted, and nothing else. Needs `authenticationEnabled`.",
        pulsar=False,
    )
    authorization_provider: AuthorizationProviderName = setting(
        AUTHORIZATION_PROVIDER,
        "Who decides, by the name of Pulsar's class.",
        pulsar=AUTHORIZATION_PROVIDER,
    )
    super_user_roles: tuple[str, ...] = setting(
        (),
        "Roles that may do everything.",
        unit="roles",
        pulsar=(),
        dynamic=True,
    )
    authorization_allow_wildcards_matching: bool = setting(
        False,
        "A grant to `name*` or `*name` holds for all roles that begin or end so.",
        pulsar=False,
    )

    # --- tokens

    token_secret_key: SecretStr = setting(
        "",
        "Key of tokens that are signed with HS256, HS384 or HS512, at least 32 bytes: "
        "`file:///PATH`, `data:;base64,...`, a path, or Base64.",
        pulsar="",
        is_secret=True,
    )
    token_public_key: str = setting(
        "",
        "Public key of tokens that are signed with RS or ES algorithms, in DER or PEM; given like "
        "`tokenSecretKey`, which wins where both are set.",
        pulsar="",
    )
    token_public_alg: AlgorithmName = setting(
        "",
        "Algorithm of the public key. Empty: RS256. Tokens of the same family of algorithms are taken.",
        pulsar="",
    )
    token_auth_claim: str = setting(
        "",
        "Claim that holds the role; of a list the first counts. Empty: `sub`.",
        pulsar="",
    )
    token_audience_claim: str = setting(
        "",
        "Claim that holds the audience. Empty: the audience is not looked at.",
        pulsar="",
    )
    token_audience: str = setting(
        "",
        "The audience that a token must name: alone, or in a list.",
        pulsar="",
    )
    token_allowed_clock_skew_seconds: int | None = setting(
        None,
        "How long after its expiry a token is still taken. Nothing: not at all.",
        unit="s",
        pulsar=None,
        ge=0,
        le=INT_MAX,
    )

    basic_auth_conf: SecretStr = setting(
        "",
        "Users and hashes of their passwords, as `htpasswd` writes them: `file:///PATH`, "
        "`data:;base64,...`, a path, or Base64.",
        pulsar="",
        is_secret=True,
    )

    open_id_allowed_token_issuers: tuple[str, ...] = setting(
        (),
        "Issuers of OpenID Connect whose tokens are taken; their public keys are read from them.",
        unit="URLs",
        pulsar=(),
    )
    open_id_allowed_audiences: tuple[str, ...] = setting(
        (),
        "A token of theirs must name one of these audiences.",
        pulsar=(),
    )
    open_id_role_claim: str = setting(
        "",
        "Claim of theirs that holds the role. Empty: `sub`.",
        pulsar="",
    )
    open_id_token_issuer_trust_certs_file_path: str = setting(
        "",
        "PEM file of the authorities that issuers' certificates are checked with. Empty: the system's.",
        pulsar="",
    )
    open_id_accepted_time_leeway_seconds: int = setting(
        0,
        "How long after its expiry a token of theirs is still taken.",
        unit="s",
        pulsar=0,
        ge=0,
        le=INT_MAX,
    )
    open_id_cache_expiration_seconds: int = setting(
        86_400,
        "How long an issuer's keys are believed after they were read.",
        unit="s",
        pulsar=86_400,
        ge=1,
        le=INT_MAX,
    )
    open_id_key_id_cache_miss_refresh_seconds: int = setting(
        300,
        "An issuer is not asked again sooner for a key that it had not published.",
        unit="s",
        pulsar=300,
        ge=0,
        le=INT_MAX,
    )
    open_id_require_issuers_use_https: bool = setting(
        True,
        "Issuers and their keys must be at https addresses.",
        pulsar=True,
    )

    # --- among brokers

    broker_client_authentication_plugin: PluginName = setting(
        AUTHENTICATION_DISABLED,
        "What this broker shows to the other ones, by the names of Pulsar's classes. Its role must be "
        "a superuser where authorization is on.",
        pulsar=AUTHENTICATION_DISABLED,
        dynamic=True,
    )
    broker_client_authentication_parameters: SecretStr = setting(
        "",
        "Its credentials: `token:...` or `file:///PATH`, a file that is read anew for each request.",
        pulsar="",
        dynamic=True,
        is_secret=True,
    )

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.authentication_enabled and not self.authentication_providers:
            raise ValueError("authenticationEnabled needs authenticationProviders")
        if self.authorization_enabled and not self.authentication_enabled:
            raise ValueError("authorizationEnabled needs authenticationEnabled")
        if self.token_audience_claim and not self.token_audience:
            raise ValueError("tokenAudienceClaim needs tokenAudience")
        has_openid = (
            self.authentication_enabled and OPENID_PROVIDER in self.authentication_providers
        )
        if has_openid and not (
            self.open_id_allowed_token_issuers and self.open_id_allowed_audiences
        ):
            raise ValueError(
                "authenticationProviders with AuthenticationProviderOpenID needs "
                "openIDAllowedTokenIssuers and openIDAllowedAudiences"
            )
        has_basic = self.authentication_enabled and BASIC_PROVIDER in self.authentication_providers
        if has_basic and not self.basic_auth_conf.get_secret_value():
            raise ValueError(
                "authenticationProviders with AuthenticationProviderBasic needs basicAuthConf"
            )
        needs_key = self.authentication_enabled and TOKEN_PROVIDER in self.authentication_providers
        if needs_key and not (self.token_secret_key.get_secret_value() or self.token_public_key):
            raise ValueError(
                "authenticationProviders with AuthenticationProviderToken needs tokenSecretKey or "
                "tokenPublicKey"
            )
        return self
