"""Who answers for an object store, and what its errors mean to the one who has to put them right."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from rft_core.errors import UserError

_ELSEWHERE = re.compile("bucket is located in|PermanentRedirect|AuthorizationHeaderMalformed|HTTP status 301")
_REGION = re.compile("bucket is located in '(.+?)'")
_NO_BUCKET = re.compile("NO_SUCH_BUCKET|NOT_FOUND|ContainerNotFound")
_REFUSED = re.compile(
    "ACCESS_DENIED|INVALID_ACCESS_KEY_ID|SIGNATURE_DOES_NOT_MATCH|INVALID_CLIENT_TOKEN_ID|MISSING_AUTHENTICATION_TOKEN|UNRECOGNIZED_CLIENT"
    "|ExpiredToken|InvalidToken|REQUEST_EXPIRED|PERMISSION_DENIED|UNAUTHENTICATED|OAuth2|AuthenticationFailed|AuthorizationFailure"
    r"|HTTP status 40(?:[13]|0\) during Head)"  # what is asked with HEAD has no room for the reason
)
_UNREACHED = re.compile(
    "NETWORK_CONNECTION|UNAVAILABLE|Fail to get a new connection|Could not connect|Could not resolve|Timeout was reached|Connection refused"
)
_REASONS = (re.compile("Details: (.+)"), re.compile("AWS Error (.+)"), re.compile("last message of (.+?)(?: error_info=|$)"))
"""Where the errors of the clients hold what a person wants to know; the best place first."""

_SHOWN = frozenset(
    {
        "account_name",
        "anonymous",
        "blob_storage_authority",
        "blob_storage_scheme",
        "dfs_storage_authority",
        "dfs_storage_scheme",
        "endpoint_override",
        "host",
        "port",
        "region",
        "scheme",
        "tls_ca_file_path",
        "username",
    }
)
"""Options whose values a message or a recipe may show."""


@dataclass(frozen=True, slots=True)
class Service:
    """What a message may say of an object store, and what it must not."""

    url: str
    """The place in it, as in `s3://bucket/prefix`."""
    bucket: str
    """As in `s3://bucket`."""
    endpoint: str
    """The host that answers."""
    credentials: str
    """What gives access, as the end of "set": `AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY`."""
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """What no message may show."""

    def no_bucket(self) -> UserError:
        """One line for a bucket that is not there."""
        return UserError(f"there is no bucket {self.bucket} at {self.endpoint}", "make it, or name one that is there")

    def problem(self, doing: str, uri: str, error: Exception) -> UserError:
        """One line for an error of the store's client.

        Args:
            doing: What was tried, as in `write`.
            uri: With which file.
            error: What the client raised.
        """
        text = str(error)
        reason = self.shown(text)
        if _ELSEWHERE.search(text):
            region = _REGION.search(text)
            right = f"set the option region, or AWS_REGION, to {region[1] if region else 'that of the bucket'}"
            return UserError(f"{self.bucket} lies in another region ({reason})", right)
        if _NO_BUCKET.search(text):
            return self.no_bucket()
        if isinstance(error, PermissionError) or _REFUSED.search(text):
            return UserError(f"access to {self.bucket} at {self.endpoint} is refused ({reason})", f"set {self.credentials}")
        if isinstance(error, ConnectionError | TimeoutError) or _UNREACHED.search(text):
            return UserError(
                f"{self.endpoint} does not answer for {self.bucket} ({reason})", "see that it runs, and that this machine can reach it"
            )
        place = f"{self.url}/{uri}" if uri else self.url
        return UserError(f"can't {doing} {place} ({reason})", "see what the store says of it, then run the same command again")

    def shown(self, text: str) -> str:
        """What a client said, in one short line without secrets."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
        text = re.sub(r"\?[^\s']+", "?***", text.partition("\n")[0])  # the query of an address may hold a signature
        text = re.sub(r" \(Request ID: .*?\)", "", text)
        found = next((match for pattern in _REASONS if (match := pattern.search(text))), None)
        return (found[1] if found else text)[:300].rstrip(" .")


def hidden(options: Mapping[str, str]) -> tuple[str, ...]:
    """The values among some options that no message may show: all but those that are known to be harmless, or are no more than a number."""
    return tuple(value for name, value in options.items() if len(value) > 3 and not is_harmless(name, value))


def is_harmless(name: str, value: str) -> bool:
    """Whether everybody may see the value of an option. An address with something before its `@` may hold a password."""
    return name in _SHOWN and "@" not in value
