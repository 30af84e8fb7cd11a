"""The rules of this code base, checked.

Each rule is one small function from a source file to its faults; each is tried on a bad snippet
before the real files are held to it. (Ruff knows some of them too, but a `noqa` silences ruff.)
Must NOT import what it checks.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Callable, Generator, Iterator, Mapping
from configparser import ConfigParser, SectionProxy
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from tests.sources import PACKAGES, ROOT, Source, read_sources

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 600  # Cohesion first: a cap of 400 cut modules into satellites with one importer.
COLUMNS_MAX, DOCUMENT_COLUMNS_MAX = 100, 120
CLASS_LINES_MAX = 300
CLASS_METHODS_MAX = 25
CLASS_FIELDS_MAX = 12
LARGE = {
    # The log's state: one record, changed by the functions of transitions.py.
    "protocols/state/run_state.py:RunState",
    # It composes the parts of a core: a field for each part.
    "protocols/peer/components.py:Components",
    # The interface of a state machine: more methods, and twelve fields.
    "protocols/raft/node.py:Raft",
}
"""Classes that may have more methods and fields, but not more lines, as path:name."""
CONSTRUCTOR_ARGUMENTS_MAX = 7
UNMIRRORED = (
    *("tests/cluster/", "tests/golden/", "tests/test_architecture.py", "tests/test_names.py"),
    *("tests/sims/test_virtual_time.py", "tests/sims/test_closed_form.py"),  # Of the whole core,
    "tests/sims/test_gaps.py",  # and this too.
    "tests/sims/test_regressions.py",  # Of a file of data.
)
MAY_SLEEP = ("tests/cluster/", "tests/peers/", "tests/conftest.py")  # They wait for processes.
METHOD = "lowcomm/methods/a.py"
CODEC = "lowcomm/codecs/b.py"
CODECS = "lowcomm/codecs/__init__.py"
TYPED = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import sims.checkers.checkers"
FLOORS = ("sims", "lowcomm", "peers", "protocols")
ROOM_FILES_MAX = 12
PLAIN = ("benchmarks/", "lowcomm/", "peers/", "protocols/", "sims/")
"""Floors and rooms that are rewritten in plain technical English. Each new one comes here."""
PERSONAL = re.compile(r"\b(who|whom|whose|whoever|nobody|somebody|everybody)\b(?!`)", re.IGNORECASE)
FRAGMENT = re.compile(
    "(What|How|Why|Where|Whether|Which|That|Those|Than|Because|As|Of|By|In|On|At|For|From|To|With|"
    "Without|Until|While|Once|After|Before|If|Unless|Also|And|Or|But|Not|Only|Same|Like) "
)
"""Begins a docstring whose first sentence is probably neither a sentence nor a noun phrase."""
FRAGMENTS_MAX = 0.1
CHAINS_MAX = 150
CATALOGUES = ("lowcomm/codecs", "lowcomm/methods", "sims/checkers", "sims/mutations", "sims/wan")
"""Rooms that may have more files: each file is one of a kind, and none knows another."""
INSIDERS = ("sims/mutations/", "sims/shell_mutations/")
"""They quote source lines of every room, as tests do."""
ROOM_DOC_LINES = (5, 15)
ROWS = re.compile(rf"\| `({'|'.join(FLOORS)})/\w")
EXECUTES_BYTES = ("pickle", "cloudpickle", "dill", "marshal", "shelve")


def long_functions(source: Source) -> Iterator[str]:
    for node in source.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield f"{node.lineno}: {node.name} has {lines} lines"


def long_file(source: Source) -> Iterator[str]:
    lines = len(source.text.splitlines())
    if lines > FILE_LINES_MAX:
        yield f"{lines} lines"


def large_classes(source: Source) -> Iterator[str]:
    """Records are exempt from the limit of fields: they are data. Tests' set-ups may be larger."""
    if source.path.startswith("tests/"):
        return
    for node in source.nodes:
        if not isinstance(node, ast.ClassDef):
            continue
        is_large = f"{source.path}:{node.name}" in LARGE
        sizes = [size for size in sizes_above(node) if not is_large or size.endswith(" lines")]
        yield from (f"{node.lineno}: {node.name} has {size}" for size in sizes)


def sizes_above(node: ast.ClassDef) -> Iterator[str]:
    """The sizes of a class that are above their limits."""
    methods = [x for x in node.body if isinstance(x, ast.FunctionDef | ast.AsyncFunctionDef)]
    fields = {ast.unparse(x.target) for x in node.body if isinstance(x, ast.AnnAssign)}
    for made in (x for method in methods if method.name == "__init__" for x in ast.walk(method)):
        if isinstance(made, ast.Attribute) and isinstance(made.ctx, ast.Store):
            fields.add(made.attr)
    is_record = any(
        word in ast.unparse(x) for x in node.decorator_list for word in ("record", "frozen=True")
    )
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    if lines > CLASS_LINES_MAX:
        yield f"{lines} lines"
    if len(methods) > CLASS_METHODS_MAX:
        yield f"{len(methods)} methods"
    if len(fields) > CLASS_FIELDS_MAX and not is_record:
        yield f"{len(fields)} fields"


def long_lines(source: Source) -> Iterator[str]:
    for number, line in enumerate(source.text.splitlines(), 1):
        if len(line) > COLUMNS_MAX:
            yield f"{number}: {len(line)} columns"


def not_ascii(source: Source) -> Iterator[str]:
    for number, line in enumerate(source.text.splitlines(), 1):
        if not line.isascii():
            yield f"{number}: {line.strip()!a}"


def no_docstring(source: Source) -> Iterator[str]:
    module = source.nodes[0]
    if isinstance(module, ast.Module) and not ast.get_docstring(module):
        yield "the module has no docstring"


def stranger_to_its_room(source: Source) -> Iterator[str]:
    """A room's docstring says what it is for, what it must not do, and where to start reading."""
    floor, _, rest = source.path.partition("/")
    module = source.nodes[0]
    if floor not in FLOORS or rest.count("/") != 1 or not rest.endswith("/__init__.py"):
        return
    text = (ast.get_docstring(module) if isinstance(module, ast.Module) else "") or ""
    lines, words = len(text.splitlines()), " ".join(text.split())
    if not ROOM_DOC_LINES[0] <= lines <= ROOM_DOC_LINES[1]:
        yield f"its docstring has {lines} lines"
    elif not all(word in words for word in ("In: ", "Out: ", "Must NOT ", "Start reading: ")):
        yield "its docstring lacks In, Out, Must NOT or Start reading"


def riddles(source: Source) -> Iterator[str]:
    """In docstrings and comments a peer, a node and a rank are things: neither who nor somebody."""
    if not source.path.startswith(PLAIN):
        return
    prose: list[tuple[int, str]] = []
    for node in source.nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            prose += enumerate(str(node.value.value).splitlines(), node.lineno)
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type == tokenize.COMMENT:
            prose.append((token.start[0], token.string))
    for number, text in prose:
        if found := PERSONAL.search(text):
            yield f"{number}: {found[0]}"


def past_the_door(source: Source) -> Iterator[str]:
    """Another floor is entered through the doors of its rooms: `from peers.ipc import RankClient`.

    What a door offers is listed in its `__all__`. Planted bugs change source text inside the rooms.
    """
    floor = source.path.partition("/")[0]
    if floor not in PACKAGES or source.path.startswith(INSIDERS):
        return
    for node in source.nodes:
        if isinstance(node, ast.Import):
            imported = [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported = [(node.module, alias.name) for alias in node.names]
        else:
            continue
        for module, name in imported:
            other, _, inside = module.partition(".")
            room = "/".join((other, inside.partition(".")[0]))
            if other not in PACKAGES or other == floor or not (ROOT / room).is_dir():
                continue
            if "." in inside or not name:
                yield f"{node.lineno}: {module} is inside the room {room}"
            elif name not in exports(room):
                yield f"{node.lineno}: {room}/__init__.py does not export {name}"


@cache
def exports(room: str) -> frozenset[str]:
    """The `__all__` of a room's door."""
    for node in ast.parse((ROOT / room / "__init__.py").read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return frozenset(ast.literal_eval(node.value))
    return frozenset()


def mirrors_nothing(source: Source) -> Iterator[str]:
    """tests/a/test_b.py tests a/b.py, or the package a/b as a whole."""
    folder, _, name = source.path.rpartition("/")
    if not name.startswith("test_") or source.path.startswith(UNMIRRORED):
        return
    target = ROOT / folder.removeprefix("tests/") / name.removeprefix("test_")
    if not target.is_file() and not (target.with_suffix("") / "__init__.py").is_file():
        yield f"there is no {target.relative_to(ROOT).as_posix()} to test"


def package_under_tests(source: Source) -> Iterator[str]:
    """tests/peers/__init__.py would shadow the real `peers`."""
    if source.path.startswith("tests/") and source.path.endswith("/__init__.py"):
        yield "tests are not a package"


def broad_handlers(source: Source) -> Iterator[str]:
    """Exception is never caught; everything may be, to clean up, when it is raised again."""
    for node in source.nodes:
        if isinstance(node, ast.ExceptHandler):
            caught = last_words(node.type) if node.type else {"BaseException"}
            if ast.unparse(node.body[-1]) == "raise":
                caught.discard("BaseException")
        elif isinstance(node, ast.Call) and "suppress" in last_words(node.func):
            caught = {word for argument in node.args for word in last_words(argument)}
        else:
            continue
        if caught & {"Exception", "BaseException"}:
            yield f"{node.lineno}: catches what it cannot know"


def code_from_bytes(source: Source) -> Iterator[str]:
    """What runs code that a file or a peer sent."""
    for line, name in mentions(source):
        if name.split(".")[0] in EXECUTES_BYTES or name in ("torch.load", "eval", "exec"):
            yield f"{line}: {name}"
    for node in source.nodes:
        if isinstance(node, ast.keyword) and ast.unparse(node) == "allow_pickle=True":
            yield f"{node.lineno}: allow_pickle"


def sleeping_tests(source: Source) -> Iterator[str]:
    if source.path.startswith("tests/") and not source.path.startswith(MAY_SLEEP):
        for line, name in mentions(source):
            if name in ("time.sleep", "asyncio.sleep"):
                yield f"{line}: {name}"


def wide_constructors(source: Source) -> Iterator[str]:
    """Written ones; the fields of a dataclass are data and may be many."""
    for node in source.nodes:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            given = node.args
            count = len(given.posonlyargs) + len(given.args) + len(given.kwonlyargs) - 1
            if count > CONSTRUCTOR_ARGUMENTS_MAX:
                yield f"{node.lineno}: {count} arguments"


def environment_in_protocols(source: Source) -> Iterator[str]:
    if source.path.startswith("protocols/"):
        for line, name in mentions(source):
            if name in ("os.environ", "os.environb", "os.getenv", "os.getenvb"):
                yield f"{line}: {name}"


@cache
def mentions(source: Source) -> list[tuple[int, str]]:
    """Line and name of what a file imports, and of each dotted and each called name in it."""
    found: list[tuple[int, str]] = []
    for node in source.nodes:
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
        elif isinstance(node, ast.Attribute):
            found.append((node.lineno, ast.unparse(node)))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found.append((node.lineno, node.func.id))
    return found


def last_words(node: ast.expr) -> set[str]:
    """{"Exception"} of `builtins.Exception`; of a tuple, one for each element."""
    elements = node.elts if isinstance(node, ast.Tuple) else [node]
    return {ast.unparse(element).rpartition(".")[2] for element in elements}


Rule = Callable[[Source], Iterator[str]]

LONG = "def f():\n" + "    pass\n" * FUNCTION_LINES_MAX
FIELDS = "class C:\n" + "".join(f"    f{n}: int\n" for n in range(CLASS_FIELDS_MAX + 1))
METHODS = "class C:\n" + "    def f(self): pass\n" * CLASS_METHODS_MAX
ROOM = '"""What.\n\nIn: x. Out: y.\nMust NOT do z.\n\nStart reading: a.py.\n"""'
WIDE = "class C:\n    def __init__(self, a, b, c, d, *, e, f, g, h): pass\n"
# A file that breaks a rule once, and one that just keeps it: (path, text) each.
EXAMPLES: tuple[tuple[Rule, tuple[str, str], tuple[str, str]], ...] = (
    (long_functions, ("a.py", LONG), ("a.py", LONG.replace("    pass\n", "", 1))),
    (long_functions, ("a.py", "async " + LONG), ("a.py", "x = 1\n" * 100)),
    (long_file, ("a.py", "\n" * 601), ("a.py", "\n" * 600)),
    (large_classes, ("a.py", "class C:" + "\n" * 300 + "    x = 1"), ("a.py", METHODS)),
    (large_classes, ("a.py", METHODS + "    def g(self): pass"), ("a.py", "@record\n" + FIELDS)),
    (large_classes, ("a.py", FIELDS), ("a.py", FIELDS.replace("f0: int", "pass"))),
    (long_lines, ("a.py", "#" * 101), ("a.py", "#" * 100)),
    (not_ascii, ("a.py", "# \N{GREEK SMALL LETTER THETA}"), ("a.py", "# theta")),
    (no_docstring, ("a.py", "import os"), ("a.py", '"""Why."""\nimport os')),
    (no_docstring, ("a/__init__.py", ""), ("a/__init__.py", '"""Why."""')),
    (stranger_to_its_room, ("peers/a/__init__.py", '"""Why."""'), ("peers/a/__init__.py", ROOM)),
    (stranger_to_its_room, ("sims/a/__init__.py", ROOM[:-3] + "\n" * 10 + '."""'), ("a.py", "")),
    (riddles, ("peers/a.py", '"""For whom."""'), ("peers/a.py", '"""For which peer."""')),
    (riddles, ("peers/a.py", "x = 1  # Nobody."), ("peers/a.py", 'x = "nobody"')),
    (
        past_the_door,
        ("peers/a.py", "from protocols.types.ids import PeerId"),
        ("peers/a.py", "from protocols.types import PeerId"),
    ),
    (
        past_the_door,
        ("peers/a.py", "from protocols.types import XXX"),
        ("protocols/a.py", "from protocols.types.ids import PeerId"),
    ),
    (
        past_the_door,
        ("lowcomm/a.py", "import peers.ipc.messages"),
        ("lowcomm/a.py", "from peers.driver import Driver"),
    ),
    (
        mirrors_nothing,
        ("tests/peers/test_none.py", ""),
        ("tests/protocols/types/test_errors.py", ""),
    ),
    (mirrors_nothing, ("tests/test_errors.py", ""), ("tests/cluster/test_none.py", "")),
    (mirrors_nothing, ("tests/protocols/test_data.py", ""), ("tests/lowcomm/test_data.py", "")),
    (package_under_tests, ("tests/peers/__init__.py", ""), ("peers/__init__.py", "")),
    (broad_handlers, ("a.py", "try: f()\nexcept: pass"), ("a.py", "try: f()\nexcept: raise")),
    (
        broad_handlers,
        ("a.py", "try: f()\nexcept Exception: raise"),
        ("a.py", "try: f()\nexcept OSError: pass"),
    ),
    (
        broad_handlers,
        ("a.py", "try: f()\nexcept* (OSError, Exception): pass"),
        ("a.py", "try: f()\nexcept* (OSError, ValueError): pass"),
    ),
    (
        broad_handlers,
        ("a.py", "try: f()\nexcept BaseException: raise F from None"),
        ("a.py", "try: f()\nexcept BaseException:\n    g()\n    raise"),
    ),
    (
        broad_handlers,
        ("a.py", "with contextlib.suppress(OSError, BaseException): f()"),
        ("a.py", "with contextlib.suppress(OSError): raise Exception"),
    ),
    (code_from_bytes, ("a.py", "import pickle"), ("a.py", "import json")),
    (code_from_bytes, ("a.py", "from marshal import loads"), ("a.py", "from json import loads")),
    (code_from_bytes, ("a.py", "torch.load(f)"), ("a.py", "json.load(f)")),
    (code_from_bytes, ("a.py", "from torch import load"), ("a.py", "from json import load")),
    (code_from_bytes, ("a.py", "eval(text)"), ("a.py", "model.eval()")),
    (code_from_bytes, ("a.py", "load(f, allow_pickle=True)"), ("a.py", "load(f)")),
    (sleeping_tests, ("tests/a.py", "time.sleep(1)"), ("tests/cluster/a.py", "time.sleep(1)")),
    (sleeping_tests, ("tests/a.py", "asyncio.sleep(0)"), ("tests/peers/a.py", "asyncio.sleep(0)")),
    (sleeping_tests, ("tests/a.py", "from time import sleep"), ("a.py", "from time import sleep")),
    (wide_constructors, ("a.py", WIDE), ("a.py", WIDE.replace(", h", ""))),
    (environment_in_protocols, ("protocols/a.py", "os.getenv('A')"), ("a.py", "os.getenv('A')")),
    (environment_in_protocols, ("protocols/a.py", "os.environ['A']"), ("protocols/a.py", "os.sep")),
)
RULES = tuple(dict.fromkeys(rule for rule, _, _ in EXAMPLES))


@pytest.mark.parametrize(("rule", "bad", "good"), EXAMPLES)
def test_a_rule_sees_what_breaks_it_and_nothing_else(
    rule: Rule, bad: tuple[str, str], good: tuple[str, str]
) -> None:
    assert len(list(rule(Source(*bad)))) == 1
    assert list(rule(Source(*good))) == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_file_keeps_the_rule(rule: Rule) -> None:
    faults = [f"{source.path}:{fault}" for source in read_sources() for fault in rule(source)]
    assert not faults, "\n".join(faults)


def test_every_exception_from_the_class_sizes_is_needed() -> None:
    needed = {
        f"{source.path}:{node.name}"
        for source in read_sources()
        for node in source.nodes
        if isinstance(node, ast.ClassDef) and list(sizes_above(node))
        if source.path.startswith(PACKAGES)
    }
    assert needed == LARGE


def test_the_rules_see_all_packages() -> None:
    folders = {source.path.split("/")[0] for source in read_sources()}
    assert folders >= {*PACKAGES, "tests"}


def rooms() -> dict[str, list[Source]]:
    """By path, the files of each sub-package of a floor."""
    found: dict[str, list[Source]] = {}
    for source in read_sources():
        folder, _, _ = source.path.rpartition("/")
        if folder.count("/") == 1 and folder.startswith(tuple(f"{floor}/" for floor in FLOORS)):
            found.setdefault(folder, []).append(source)
    return found


@pytest.mark.parametrize("floor", PACKAGES)
def test_few_docstrings_begin_as_fragments(floor: str) -> None:
    texts = [
        ast.get_docstring(node)
        for source in read_sources()
        if source.path.startswith(f"{floor}/")
        for node in source.nodes
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    written = [text for text in texts if text]
    fragments = [text for text in written if FRAGMENT.match(text)]
    assert len(fragments) <= FRAGMENTS_MAX * len(written)


def test_few_expressions_reach_through_three_objects() -> None:
    """`a.b.c.d` ties its reader to how three other objects are made."""
    found: list[str] = []
    for source in read_sources():
        if not source.path.startswith(PLAIN):
            continue
        for node in source.nodes:
            depth, inner = 0, node
            while isinstance(inner, ast.Attribute):
                depth, inner = depth + 1, inner.value
            if depth == 3 and isinstance(inner, ast.Name):
                found.append(f"{source.path}: {ast.unparse(node)}")
    assert len(found) <= CHAINS_MAX, "\n".join(found)


def test_lines_of_documents_are_short() -> None:
    """Rows of tables apart, which cannot be broken."""
    long = [
        f"{path}:{number}"
        for path in (ROOT / "docs").rglob("*.md")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > DOCUMENT_COLUMNS_MAX and not line.startswith("|")
    ]
    assert long == []


def test_rooms_are_small_enough_to_look_around_in() -> None:
    sizes = {room: len(files) - 1 for room, files in rooms().items() if room not in CATALOGUES}
    assert {room: size for room, size in sizes.items() if size > ROOM_FILES_MAX} == {}


def test_doors_offer_what_is_used_outside_and_nothing_else() -> None:
    used = {
        (node.module.replace(".", "/"), alias.name)
        for source in read_sources()
        if source.path.startswith(PACKAGES)
        for node in source.nodes
        if isinstance(node, ast.ImportFrom) and node.module
        if not source.path.startswith(node.module.replace(".", "/") + "/")
        for alias in node.names
    }
    idle = {room: exports(room) - {name for door, name in used if door == room} for room in rooms()}
    assert {room: names for room, names in idle.items() if names} == {}


def test_the_architecture_has_a_row_for_each_room() -> None:
    """The first sentence of its docstring, word for word."""
    expected: list[str] = []
    for room, files in sorted(rooms().items()):
        module = next(file for file in files if file.path.endswith("/__init__.py")).nodes[0]
        assert isinstance(module, ast.Module)
        first = (ast.get_docstring(module) or "").partition("\n\n")[0].replace("\n", " ")
        expected.append(f"| `{room}` | {first} |")
    lines = (ROOT / "ARCHITECTURE.md").read_text("utf-8").splitlines()
    assert [line for line in lines if ROWS.match(line)] == expected


def test_imports_keep_the_contracts() -> None:
    result = lint_imports(ROOT)
    assert result.returncode == 0, result.stdout


@pytest.fixture(scope="module")
def hollow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with empty files."""
    folder = tmp_path_factory.mktemp("hollow")
    for source in read_sources():
        if not source.path.startswith("tests/"):
            (folder / source.path).parent.mkdir(parents=True, exist_ok=True)
            (folder / source.path).touch()
    (folder / ".importlinter").write_text((ROOT / ".importlinter").read_text())
    return folder


@contextmanager
def written(files: Mapping[str, str], folder: Path) -> Generator[None]:
    """Inside of the block, these files have these texts; then they are empty or missing again."""
    missing = [path for path in files if not (folder / path).exists()]
    for path, text in files.items():
        (folder / path).write_text(text)
    try:
        yield
    finally:
        for path in files:
            (folder / path).write_text("")
        for path in missing:
            (folder / path).unlink()


@pytest.mark.parametrize(
    ("broken", "files"),
    [
        ("layers", {"protocols/a.py": "import peers.a", "peers/a.py": ""}),
        ("layers", {"peers/a.py": "import lowcomm.config.schema"}),
        ("layers", {"lowcomm/config/schema.py": "import sims"}),
        ("layers", {"sims/a.py": "import benchmarks.codecs"}),
        ("protocols", {"protocols/a.py": "def now():\n    import time"}),
        ("peers", {"peers/a.py": "import numpy"}),
        (
            "daemon",
            {"lowcomm/config/schema.py": "import lowcomm.a", "lowcomm/a.py": "import torch"},
        ),
        ("rooms_of_protocols", {"protocols/raft/a.py": "import protocols.peer.core"}),
        ("rooms_of_peers", {"peers/ipc/a.py": "import peers.driver"}),
        ("rooms_of_lowcomm", {"lowcomm/config/a.py": "import lowcomm.daemon.daemon"}),
        ("rooms_of_sims", {"sims/node/a.py": "import sims.simulator.world"}),
        ("rooms_of_sims", {"sims/simulator/a.py": TYPED}),
        ("methods", {METHOD: "import lowcomm.methods.b", "lowcomm/methods/b.py": ""}),
        ("methods", {METHOD: "import lowcomm.codecs.b", CODEC: ""}),
        ("methods rooms_of_lowcomm", {METHOD: "", CODEC: "import lowcomm.methods.a"}),
        ("methods", {CODEC: "import lowcomm.codecs.fp32"}),
        ("", {CODEC: "import lowcomm.codecs.blocks"}),
        ("", {METHOD: "import lowcomm.codecs", CODECS: "import lowcomm.codecs.b", CODEC: ""}),
        ("", {METHOD: "import lowcomm.methods.base", "lowcomm/methods/base.py": ""}),
        ("", {"sims/a.py": "import lowcomm.a", "lowcomm/a.py": "import peers, torch"}),
    ],
)
def test_a_contract_sees_what_breaks_it_and_nothing_else(
    broken: str, files: Mapping[str, str], hollow: Path
) -> None:
    """`broken`: names."""
    with written(files, hollow):
        result = lint_imports(hollow)

    for name, contract in read_contracts().items():
        verdict = "BROKEN" if name in broken.split() else "KEPT"
        assert f"{contract['name']} {verdict}" in result.stdout, result.stdout


def test_the_contracts_name_every_room() -> None:
    for floor in FLOORS:
        named = read_contracts()[f"rooms_of_{floor}"]["layers"].replace("|", " ").split()
        there = {file.stem for file in (ROOT / floor).glob("*.py")} - {"__init__"}
        there |= {file.parent.name for file in (ROOT / floor).glob("*/__init__.py")}
        assert set(named) == there


def test_importing_the_daemon_loads_no_torch() -> None:
    """Packages that we import may import torch; import-linter does not look into them."""
    program = "import sys; [__import__(m) for m in sys.argv[1:]]; sys.exit('torch' in sys.modules)"
    modules = read_contracts()["daemon"]["source_modules"].split()
    command = [sys.executable, "-c", program, *modules]
    result = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr or "torch is loaded"


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """In a process of its own: it changes sys.path and the logging of the one it runs in."""
    program = "import importlinter.cli as c; raise SystemExit(c.lint_imports(no_cache=True))"
    command = [sys.executable, "-c", program]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )


def read_contracts() -> dict[str, SectionProxy]:
    parser = ConfigParser()
    parser.read(ROOT / ".importlinter")
    prefix = "importlinter:contract:"
    return {
        title.removeprefix(prefix): section
        for title, section in parser.items()
        if title.startswith(prefix)
    }
