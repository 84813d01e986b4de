"""What the tests of the lab share."""

from tests.serving import server

__all__ = ["server"]
