"""The digest of a list of files, and the file that differs in two lists."""

import hashlib
from dataclasses import replace

from lowcomm.data.manifest import ManifestFile, difference, file_marks, manifest_digest
from protocols.types.limits import CORPUS_FILES_MAX, CORPUS_MARKS_BYTES_MAX

FILES = [ManifestFile(f"{number:04}.bin", 100, f"{number:064x}") for number in range(5)]


def test_the_digest_is_over_a_canonical_text() -> None:
    files = [ManifestFile("a/b.txt", 3, "ab" * 32), ManifestFile('\u00e9"\n', 0, "cd" * 32)]
    canonical = f'[["a/b.txt",3,"{"ab" * 32}"],["\\u00e9\\"\\n",0,"{"cd" * 32}"]]'
    assert manifest_digest(files) == hashlib.sha256(canonical.encode("ascii")).hexdigest()


def test_the_first_file_that_differs_is_named() -> None:
    marks = file_marks(FILES)
    other = [*FILES[:2], replace(FILES[2], sha256="f" * 64), *FILES[3:]]
    assert difference(other, marks) == "0002.bin (100 bytes) has another content in the run"
    longer = [*FILES[:3], replace(FILES[3], size_bytes=101), FILES[4]]
    assert difference(longer, marks) == "0003.bin (101 bytes) has another content in the run"
    assert difference(FILES[1:], marks) == "1 of 5 files of the run are not here"
    more = replace(FILES[0], path="0000a.bin")
    assert difference([more, *FILES], marks) == "0000a.bin is not in the run"


def test_of_many_files_the_first_ones_are_marked() -> None:
    many = [replace(FILES[0], path=str(number)) for number in range(CORPUS_FILES_MAX + 2)]
    marks = file_marks(many)
    assert len(marks) == CORPUS_MARKS_BYTES_MAX
    other = [*many[:-1], replace(many[-1], size_bytes=1)]
    assert (
        difference(other, marks) == "all of the first 1024 files are equal, but a later one is not"
    )
    assert difference(many[1:], marks) == "1 of 1024 files of the run are not here"
