"""A `dot` for machines without one: Graphviz's own libraries from the pygraphviz wheel, behind `dot`'s arguments.

It stands beside the package, not in it, so that a picture does not wait for the package's imports, and it runs as a
process of its own, so that what the C libraries write to stderr does not show up red in a notebook cell.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

_FONTS_CONF = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
{folders}
  <cachedir>{cache}</cachedir>
  <alias><family>serif</family><prefer><family>DejaVu Sans</family></prefer></alias>
  <alias><family>sans-serif</family><prefer><family>DejaVu Sans</family></prefer></alias>
  <alias><family>monospace</family><prefer><family>DejaVu Sans Mono</family></prefer></alias>
</fontconfig>
"""
_SYSTEM_FONTS = ("/usr/share/fonts", "/usr/local/share/fonts", "/System/Library/Fonts", "/Library/Fonts")


def main(arguments: Sequence[str] | None = None) -> int:
    """Lay out and draw one graph, as ``dot -Kdot -Tsvg`` would; the exit status says whether it could.

    Parameters
    ----------
    arguments : sequence of str or None
        ``-K`` engine, ``-T`` format, ``-o`` file, ``-O``, ``-V``, ``-n``, and a file or stdin; None takes ``sys.argv``.

    Returns
    -------
    int
        0, or 1 with a line on stderr.

    Examples
    --------
    >>> main(["-Tsvg", "/no/such/file.gv"])
    1
    """
    options, attributes = _parser().parse_known_args(arguments)
    file = kept_fonts_conf() if "FONTCONFIG_FILE" not in os.environ else None
    try:
        if file is not None:
            os.environ["FONTCONFIG_FILE"] = str(file)
        with _errors_to_the_end():
            return _version() if options.version else _draw(options, attributes)
    except Exception as error:  # whatever the libraries raise becomes the one line that `dot` would print
        print(f"coconet-dot: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    finally:
        if file is not None:
            os.environ.pop("FONTCONFIG_FILE", None)


def kept_fonts_conf() -> Path | None:
    """The fontconfig file in ``coconet_lab/fonts`` of the user's cache, else in a private folder for temporary files.

    A folder that stays needs no clearing away when a drawing is killed, and fonts are looked through once.

    Returns
    -------
    Path or None
        None where no folder of this user's own can be written: the machine's own set-up of fonts then holds.

    Examples
    --------
    >>> file = kept_fonts_conf()
    >>> file is None or file.suffix == ".conf"
    True
    """
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    private = os.path.join(tempfile.gettempdir(), f"coconet_lab-{os.getuid()}")
    for folder in (Path(home, "coconet_lab", "fonts"), Path(private)):
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if folder.stat().st_uid == os.getuid():
                return write_fonts_conf(folder)
    return None


def write_fonts_conf(folder: Path) -> Path:
    """Write a fontconfig file into `folder` that names matplotlib's DejaVu fonts first, then the machine's.

    Parameters
    ----------
    folder : Path
        An existing folder; the cache of font metrics is put there too. Several processes may use it at once.

    Returns
    -------
    Path
        The file, for FONTCONFIG_FILE. It stays as it is where it is whole already.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     "DejaVu Sans" in write_fonts_conf(pathlib.Path(folder)).read_text()
    True
    """
    folders = [path for path in (*_matplotlib_fonts(), *_SYSTEM_FONTS) if os.path.isdir(path)]
    listed = "\n".join(f"  <dir>{_escaped(path)}</dir>" for path in folders)
    text = _FONTS_CONF.format(folders=listed, cache=_escaped(str(folder / "cache"))).encode()
    # Another environment has its fonts elsewhere, and so a file of its own; fontconfig's cache knows folders apart.
    file = folder / f"fonts-{hashlib.blake2b(text, digest_size=8).hexdigest()}.conf"
    with contextlib.suppress(OSError):
        if file.read_bytes() == text:
            return file
    descriptor, aside = tempfile.mkstemp(prefix=file.stem, suffix=".tmp", dir=folder)
    try:
        with os.fdopen(descriptor, "wb") as written:
            written.write(text)
        os.replace(aside, file)
    except OSError:
        os.unlink(aside)
        raise
    return file


def _matplotlib_fonts() -> list[str]:
    spec = importlib.util.find_spec("matplotlib")  # found, not imported: the import alone takes longer than the drawing
    if spec is None or spec.origin is None:
        return []
    return [str(Path(spec.origin).parent / "mpl-data" / "fonts" / "ttf")]


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="coconet-dot", description="Graphviz's dot, drawn by pygraphviz.")
    parser.add_argument("-K", dest="engine", default="dot", help="layout engine")
    parser.add_argument("-T", dest="format", default="dot", help="output format, as svg or png:cairo")
    parser.add_argument("-o", dest="output", help="output file; without it, stdout")
    parser.add_argument("-O", dest="beside", action="store_true", help="write INPUT.FORMAT beside the input")
    parser.add_argument("-n", dest="positions", nargs="?", const="1", help="neato: keep the given positions")
    parser.add_argument("-V", dest="version", action="store_true", help="print the version of Graphviz")
    parser.add_argument("input", nargs="?", help="DOT file; without it, stdin")
    return parser


def _draw(options: argparse.Namespace, attributes: Sequence[str]) -> int:
    import pygraphviz

    raw = Path(options.input).read_bytes() if options.input else sys.stdin.buffer.read()
    # A node's label is its name only once the libraries have made a drawing context: without this first, empty drawing
    # the first graph that is read would have empty boxes.
    pygraphviz.AGraph(string="digraph {}").draw(format="dot", prog="dot")
    graph = pygraphviz.AGraph(string=raw.decode("utf-8"))
    engine = "nop2" if options.positions == "2" else "nop" if options.positions else options.engine
    picture = graph.draw(format=options.format, prog=engine, args=" ".join(attributes))
    target = options.output
    if options.beside:
        # dot's own naming: the formatter and renderer come first, the format last (x.gv.cairo.png).
        suffix = ".".join([*reversed(options.format.split(":")[1:]), options.format.split(":")[0]])
        target = f"{options.input or 'noname.gv'}.{suffix}"
    if target is None:
        sys.stdout.buffer.write(picture)
        sys.stdout.buffer.flush()
    else:
        Path(target).write_bytes(picture)
    return 0


def _version() -> int:
    import pygraphviz

    source = pygraphviz.AGraph(string="digraph {}").draw(format="svg", prog="dot").decode()
    number = source.partition("graphviz version ")[2].partition(" ")[0] or "unknown"
    print(f"dot - graphviz version {number} (pygraphviz {pygraphviz.__version__})", file=sys.stderr)
    return 0


@contextlib.contextmanager
def _errors_to_the_end() -> Iterator[None]:
    """Hold back what is written to descriptor 2, then pass it on without fontconfig's remarks on its own set-up."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
            held.seek(0)
            lines = [line for line in held.read().splitlines() if b"Fontconfig" not in line and line.strip()]
            if lines:
                os.write(2, b"\n".join(lines) + b"\n")


if __name__ == "__main__":
    sys.exit(main())
