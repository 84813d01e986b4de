"""Buckets of S3, and of whoever speaks its language: `s3://bucket/folder/file`.

Credentials are those of the environment (`AWS_ACCESS_KEY_ID`, a role of the container or of a web
identity); of profiles in `~/.aws` and of machines with a role, if boto3 is installed. Without any,
buckets that are open to all are read unsigned.
"""

from typing import TYPE_CHECKING, Any

from neuralmark.remote.transfer.bucket import Bucket, environment

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

_SIGNED = (
    *("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_METADATA_ENDPOINT"),
    *("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"),
)


class S3Bucket(Bucket):
    """A bucket of S3."""

    scheme = "s3"
    credentials = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE (with boto3)"

    def endpoint(self) -> str | None:
        """As S3's own clients are told of it."""
        return environment("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")

    def opened(self, client: "ClientConfig", retries: "RetryConfig") -> "ObjectStore":
        """The store, with the region and the credentials of the environment."""
        from obstore.store import S3Store

        told: dict[str, Any] = {"client_options": client, "retry_config": retries}
        endpoint = self.endpoint()
        if endpoint:
            told["endpoint"] = endpoint
        region = environment("AWS_REGION", "AWS_DEFAULT_REGION")
        if region:
            told["region"] = region
        if not environment(*_SIGNED):
            provider = _of_boto3()
            if provider is None:
                told["skip_signature"] = True
            else:
                told["credential_provider"] = provider
        return S3Store(self.bucket, **told)


def _of_boto3() -> Any:
    """What boto3 finds in ~/.aws or gets of the machine's role; None without it, or if nothing."""
    try:
        import boto3
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        return None
    found = boto3.Session()
    return None if found.get_credentials() is None else Boto3CredentialProvider(found)
