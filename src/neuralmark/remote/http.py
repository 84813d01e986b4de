"""Web servers without encryption: for machines of one's own network, where that is allowed."""

from neuralmark.remote.https import WebServer


class PlainWebServer(WebServer):
    """A web server of one's own; a public one is refused, because anybody could swap the model."""
