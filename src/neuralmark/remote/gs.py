"""Buckets of Google Cloud Storage: `gs://bucket/folder/file`.

Credentials are those of the environment (`GOOGLE_APPLICATION_CREDENTIALS`, a service account) and
of `gcloud auth application-default login`. Without any, buckets that are open to all are read
unsigned.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuralmark.remote.transfer.bucket import Bucket, environment

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

_FILES = ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH", "GOOGLE_APPLICATION_CREDENTIALS")
_USUAL = "~/.config/gcloud/application_default_credentials.json"
_MOST = 1 << 20


class GoogleBucket(Bucket):
    """A bucket of Google's."""

    scheme = "gs"
    credentials = (
        "set GOOGLE_APPLICATION_CREDENTIALS, or run 'gcloud auth application-default login'"
    )

    def endpoint(self) -> str | None:
        """As the environment or the service account names it."""
        given = environment("GOOGLE_BASE_URL", "STORAGE_EMULATOR_HOST")
        return given or _base_of(_account())

    def opened(self, client: "ClientConfig", retries: "RetryConfig") -> "ObjectStore":
        """The store, with the credentials of the environment."""
        from obstore.store import GCSStore

        told: dict[str, Any] = {"client_options": client, "retry_config": retries}
        endpoint = self.endpoint()
        if endpoint:
            told["base_url"] = endpoint
        if not environment("GOOGLE_SERVICE_ACCOUNT_KEY", *_FILES) and not _usual().is_file():
            told["skip_signature"] = True
        return GCSStore(self.bucket, **told)


def _usual() -> Path:
    return Path(_USUAL).expanduser()


def _account() -> Any:
    """The service account that the environment names, parsed; else nothing."""
    key, file = environment("GOOGLE_SERVICE_ACCOUNT_KEY"), environment(*_FILES)
    try:
        if key is None and file is not None:
            with open(file, encoding="utf-8") as opened:
                key = opened.read(_MOST)
        return json.loads(key) if key else {}
    except (OSError, ValueError, RecursionError):
        return {}


def _base_of(account: Any) -> str | None:
    base = account.get("gcs_base_url") if isinstance(account, dict) else None
    return base if isinstance(base, str) else None
