"""Makes English text to pre-train on, from packages of Debian 12.

    python examples/paper/debian_text.py --output_dir=text

downloads packages with `apt-get download` and writes a file for each: one
sentence per line, and a blank line after each page or forty paragraphs. It
keeps the paragraphs that read like English prose, each once, and prints what
each package contributed and a checksum. Needs Debian 12 or a Debian 12
container (run `apt-get update` first) and 500 MB of disk; installs nothing.

The packages are novels, essays, dictionaries, quotations and manuals under free
licences, named in the file `copyright` of each package.
"""

import dataclasses
import fnmatch
import gzip
import hashlib
import html
import os
import re
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Iterator

from make_tasks import split_sentences

from bert_tf import cli
from bert_tf.base import files
from bert_tf.base.options import Options, option
from bert_tf.errors import InputError


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextOptions(Options):
    """Options of this program."""

    output_dir: str = option("Folder of the text.")


PAGES = """
abs-guide anarchism apache2-doc bind9-doc c++-annotations-html cmake-doc
cmucl-docs csound-doc debian-policy debian-reference-en developers-reference
erlang-doc exim4-doc-html ghc-doc git-doc imagemagick-6-doc
libreoffice-help-en-us linux-doc-6.1 maint-guide maxima-doc mh-book octave-doc
png-definitive-guide postfix-doc postgresql-doc-15 python-django-doc
python3.11-doc shorewall-doc slurm-wlm-doc sqlite3-doc wireshark-doc zsh-doc
"""
# Package -> pattern of its files.
PACKAGES = {
    **dict.fromkeys(PAGES.split(), "*.html"),
    "cfi-en": "*.htm",
    "dict-devil": "*.dict.dz",
    "dict-foldoc": "*.dict.dz",
    "dict-gcide": "*.dict.dz",
    "dict-jargon": "*.dict.dz",
    "fortunes": "*/games/fortunes/*[!t]",
    "perl-doc": "*.pod",
    "r-cran-janeaustenr": "*/data/Rdata.rdb",
}
COMMON_WORDS = """
the of and to a in is that it for as with be on by this are was or not from at
an which you he his i have if they but can will when one all has there we their
would been who so no more any other what its
"""
COMMON = frozenset(COMMON_WORDS.split())
WORD = re.compile(r"[\"'(]*[A-Za-z]+(?:[-'][A-Za-z]+)*[\"'),.;:!?]*")
# Elements without prose, elements inside a sentence, and all others.
LEFT_OUT = re.compile(r"(?is)<(pre|script|style|title)\b.*?</\1>|<!--.*?-->")
INLINE = re.compile(r"(?i)</?(?:a|b|code|em|i|kbd|span|strong|tt)\b[^>]*>")
BLOCK = re.compile(r"<[^>]*>")


def paragraphs(name: str, data: bytes) -> list[str]:
    """Returns the paragraphs of a file, whose name ends with its format."""
    if name.endswith(".dz"):
        data = gzip.decompress(data)
    if name.endswith(".rdb"):  # R: strings after their type and their size
        data = re.sub(rb"(?s)\x00\x04\x00\t.{4}", b"\n", inflated(data))
    text = data.decode(errors="replace")
    if name.endswith((".html", ".htm")):
        text = INLINE.sub("", LEFT_OUT.sub("\n\n", text))
        text = html.unescape(BLOCK.sub("\n\n", text))
    if name.endswith(".dz"):  # \pronunciation\, [etymology], {link}, <field>
        text = re.sub(r"<[^>]*>|\[[^]]*\]|\\[^\\]*\\|[{}]", "", text)
    if name.endswith(".pod"):  # C<code>, B<< bold >>; indented examples
        text = re.sub(r"(?m)[A-Z]<+\s*(.*?)\s*>+|^[= \t].*", r"\1", text)
    text = text.translate(str.maketrans("‘’“”\xa0", "''\"\" "))
    return re.split(r"\n(?:\s*|%)\n", text)


def inflated(data: bytes) -> bytes:
    """Returns the content of compressed objects, each after four bytes."""
    found = b""
    while data:
        stream = zlib.decompressobj()
        found += b"\n\n" + stream.decompress(data[4:])
        data = stream.unused_data
    return found


def is_prose(text: str) -> bool:
    """Returns whether a paragraph consists of sentences of English words."""
    words = text.split()
    common = sum(word.strip("\"'(),.;:!?").lower() in COMMON for word in words)
    return (
        len(words) >= 8
        and text.isprintable()
        and re.search(r"[.!?][\"')]*$", text) is not None
        and common >= 0.3 * len(words)
        and sum(map(bool, map(WORD.fullmatch, words))) >= 0.85 * len(words)
    )


def sentences(text: str) -> str:
    """Returns the sentences of five words or more, one per line."""
    found = (text[start:end].strip() for start, end in split_sentences(text))
    return "\n".join(line for line in found if line.count(" ") >= 4)


def read_package(path: str, pattern: str) -> Iterator[tuple[str, bytes]]:
    """Yields the names and contents of a package's files."""
    unpack = ["dpkg-deb", "--fsys-tarfile", path]
    with (
        subprocess.Popen(unpack, stdout=subprocess.PIPE) as process,
        tarfile.open(fileobj=process.stdout, mode="r|") as archive,
    ):
        for member in archive:
            if member.isfile() and fnmatch.fnmatch(member.name, pattern):
                yield member.name, archive.extractfile(member).read()


def documents(path: str, pattern: str, seen: set[str]) -> Iterator[str]:
    """Yields the documents of a package; adds their paragraphs to `seen`."""
    for name, data in read_package(path, pattern):
        lines = []
        for paragraph in paragraphs(name, data):
            text = " ".join(paragraph.split())
            letters = re.sub(r"\W+", "", text).lower()
            if is_prose(text) and letters not in seen:
                seen.add(letters)
                lines += filter(None, [sentences(text)])
        for start in range(0, len(lines), 40):
            yield "\n".join(lines[start : start + 40]) + "\n"


def run(config: TextOptions) -> None:
    """Writes the text."""
    files.makedirs(config.output_dir)
    seen: set[str] = set()
    whole, total = hashlib.sha256(), [0, 0, 0]
    with tempfile.TemporaryDirectory(dir=config.output_dir) as folder:
        download = ["apt-get", "-qq", "-o", "APT::Sandbox::User=root"]
        download += ["download", *PACKAGES]
        try:
            subprocess.run(download, cwd=folder, check=True)
        except (OSError, subprocess.CalledProcessError):
            raise InputError(
                "apt-get could not download the packages. Rerun the command in "
                "Debian 12, or a Debian 12 container, after apt-get update."
            ) from None
        print("| package | version | MB | sentences | words |")
        print("| --- | --- | --- | --- | --- |", flush=True)
        for file in sorted(os.listdir(folder)):
            package, version, _ = file.split("_")
            path = os.path.join(folder, file)
            text = "\n".join(documents(path, PACKAGES[package], seen))
            name = os.path.join(config.output_dir, f"{package}.txt")
            files.write_text(name, text)
            whole.update(text.encode())
            count = sum(map(bool, text.split("\n")))
            counts = [len(text.encode()), count, len(text.split())]
            total = [sum(pair) for pair in zip(total, counts, strict=True)]
            print_row(package, version.replace("%3a", ":"), *counts)
    print_row("all", "", *total)
    print(f"\nSHA-256: {whole.hexdigest()}")


def print_row(name: str, version: str, size: int, *counts: int) -> None:
    cells = [name, version, f"{size / 1e6:.1f}", *map("{:,}".format, counts)]
    print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    cli.main(run)
