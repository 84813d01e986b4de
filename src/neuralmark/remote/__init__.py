"""Models behind URLs: one module per scheme; the file's name is the scheme's.

`at_url` gives a place, which formats read like a file: only what they ask for is fetched. What
schemes share is in `contract` and `transfer/`. Third parties register a class that derives from
`RemoteService` under the entry point group `neuralmark.remote`.
"""

from neuralmark.errors import AddressError, MissingExtraError, ParameterError
from neuralmark.registry import Registry, unknown
from neuralmark.remote.contract import RemoteOptions, RemotePlace, RemoteService
from neuralmark.remote.transfer.addresses import is_url, parsed, redacted, scheme_of

__all__ = ["RemoteOptions", "at_url", "is_url", "scheme_names"]

_REGISTRY: Registry[RemoteService] = Registry(
    __name__,
    RemoteService,  # type: ignore[type-abstract]
    "scheme",
    "neuralmark.remote",
    AddressError,
)


def scheme_names() -> list[str]:
    """The schemes of URLs that can be read."""
    return _REGISTRY.names()


def at_url(url: str, options: RemoteOptions | None = None) -> RemotePlace:
    """A model behind a URL, to be given to `verify`, `inspect`, `recheck` and `lineage`.

    They take URLs as text, too: this is for those who want other options than the usual ones.
    Nothing is asked before something is read.

    Args:
        url: `hf://owner/name[@revision][/file]`, `https://…`, `s3://…`, `gs://…` or `az://…`: a
            file, or the folder of a model.
        options: Whom to ask, and whether to keep what was fetched; see `RemoteOptions`.

    Returns:
        The place, which is read like a file or folder.

    Raises:
        AddressError: The URL is of no known kind, or has credentials in it.
        AccessError: The environment does not say what is needed to ask.
        MissingExtraError: What reads such URLs is not installed.

    Examples:
        >>> str(neuralmark.at_url("hf://acme/bert@main/model.safetensors"))
        'hf://acme/bert@main/model.safetensors'
    """
    if not isinstance(url, str):
        raise ParameterError(f"a URL is a text, not a {type(url).__name__}")
    if options is not None and not isinstance(options, RemoteOptions):
        raise ParameterError(f"expected RemoteOptions, not {type(options).__name__}")
    scheme = scheme_of(url)
    if scheme not in scheme_names():
        known = unknown(scheme, scheme_names())
        raise AddressError(f"{redacted(url)[:200]}: there are no URLs of the kind {known}")
    address = parsed(url)
    try:
        service = _REGISTRY.get(scheme)
    except ImportError:
        raise MissingExtraError(
            f"reading {scheme}:// needs the remote extra: pip install 'neuralmark[remote]'"
        ) from None
    from neuralmark.remote.transfer.session import Session

    made, path = service.at(address, options or RemoteOptions())
    return RemotePlace(Session(made), path)
