"""Object stores on loopback: moto's S3, and small servers with Google's and Azure's REST layout."""

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import parse_qs, urlsplit
from xml.sax.saxutils import escape

from tests.support.ranges import RangeHandler, RangeServer, Served, range_server

DATE = "Mon, 01 Jan 2024 00:00:00 GMT"


@contextmanager
def moto_s3() -> Iterator[str]:
    """The address of moto's S3."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@contextmanager
def google() -> Iterator[RangeServer]:
    """Google's XML interface: GET /bucket/key, and GET /bucket?list-type=2."""
    with range_server() as server:
        server.always["/bucket"] = _google_list
        yield server


@contextmanager
def azure() -> Iterator[RangeServer]:
    """Azure's blob service: GET /container/key, and GET /container?comp=list."""
    with range_server() as server:
        server.always["/container"] = _azure_list
        yield server


def put(server: RangeServer, path: str, data: bytes) -> None:
    """An object."""
    server.put(path, data, modified=DATE, more={"x-ms-blob-type": "BlockBlob"})


def _google_list(handler: RangeHandler, _: bytes) -> bool:
    entries = "".join(
        f"<Contents><Key>{escape(name)}</Key><LastModified>2024-01-01T00:00:00.000Z</LastModified>"
        f"<ETag>{escape(served.headers()['ETag'])}</ETag><Size>{len(served.data)}</Size></Contents>"
        for name, served in _keys(handler, "/bucket/")
    )
    body = f"<ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>"
    handler.answer(200, body.encode(), {"Content-Type": "application/xml"})
    return True


def _azure_list(handler: RangeHandler, _: bytes) -> bool:
    entries = "".join(
        f"<Blob><Name>{escape(name)}</Name><Properties><Last-Modified>{DATE}</Last-Modified>"
        f"<Etag>{escape(served.headers()['ETag'])}</Etag>"
        f"<Content-Length>{len(served.data)}</Content-Length>"
        "<Content-Type>application/octet-stream</Content-Type></Properties></Blob>"
        for name, served in _keys(handler, "/container/")
    )
    body = (
        '<?xml version="1.0" encoding="utf-8"?><EnumerationResults><Blobs>'
        f"{entries}</Blobs><NextMarker/></EnumerationResults>"
    )
    handler.answer(200, body.encode(), {"Content-Type": "application/xml"})
    return True


def _keys(handler: RangeHandler, under: str) -> Iterator[tuple[str, Served]]:
    query = parse_qs(urlsplit(handler.path).query)
    prefix, after = query.get("prefix", [""])[0], query.get("start-after", [""])[0]
    for path, served in sorted(handler.server.files.items()):
        name = path.removeprefix(under)
        if path.startswith(under) and name.startswith(prefix) and name > after:
            yield name, served
