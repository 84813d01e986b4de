"""Containers of Azure's blob storage: `az://container/folder/file`.

The account and its credentials are those of the environment (`AZURE_STORAGE_ACCOUNT_NAME`, with a
key, a SAS token, or a client's secret) or of `az login`. Without any, containers that are open to
all are read unsigned.
"""

from typing import TYPE_CHECKING, Any

from neuralmark.errors import AccessError
from neuralmark.remote.transfer.bucket import Bucket, environment

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

_ACCOUNT = ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT")
_SIGNED = (
    *("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_SAS_KEY"),
    *("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_TOKEN", "AZURE_STORAGE_CLIENT_ID"),
    *("AZURE_CLIENT_ID", "AZURE_FEDERATED_TOKEN_FILE", "AZURE_USE_AZURE_CLI", "IDENTITY_ENDPOINT"),
)


class AzureContainer(Bucket):
    """A container of Azure's."""

    scheme = "az"
    skips = False
    credentials = (
        "set AZURE_STORAGE_ACCOUNT_NAME, and AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_KEY"
    )

    def endpoint(self) -> str | None:
        """As the environment names it."""
        return environment("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")

    def opened(self, client: "ClientConfig", retries: "RetryConfig") -> "ObjectStore":
        """The store, with the account and the credentials of the environment."""
        from obstore.store import AzureStore

        account = environment(*_ACCOUNT)
        if account is None:
            raise AccessError(
                f"{self.label('')}: the account is not known: set AZURE_STORAGE_ACCOUNT_NAME"
            )
        told: dict[str, Any] = {"client_options": client, "retry_config": retries}
        endpoint = self.endpoint()
        if endpoint:
            told["endpoint"] = endpoint
        if not environment(*_SIGNED):
            told["skip_signature"] = True
        return AzureStore(self.bucket, account_name=account, **told)
