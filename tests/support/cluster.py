"""The token of Ray's clusters in the tests: Ray reads it once in a process, so all share it."""

import secrets

TOKEN = secrets.token_hex(32)
