"""Where things lie in the repository."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ANSWERS = ROOT / "tests" / "golden" / "data"
"""Known answers of the published method and of the native derivation."""

RELEASE = ROOT / "tests" / "golden" / "release-0.1"
"""One file of each kind, written by the first release."""
