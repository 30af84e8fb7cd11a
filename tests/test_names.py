"""Names that many classes share: each has one meaning, and stands in a list here.

A reader that searches for a name should find few places, or one idea. Must NOT import what it
checks.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator

from tests.sources import PACKAGES, read_sources

METHOD_CLASSES_MAX = 8
SHARED_METHODS_MAX = 12
SHARED_METHODS = {
    "close": "ends a connection, a transfer or a resource for good; idempotent",
    "deadline": "the next time at which the object has to act without an event",
    "disconnected": "the connection with a peer has ended",
    "encode": "writes values or an own contribution in the form of a codec",
    "finished": "the run is over; as a question to the object, its own part in it",
    "forget": "drops all that is remembered of a peer, or of an earlier attempt, step or run",
    "keep": "drops all that is not of these peers, or not of this lineage",
    "run": "works until the end of its task; as a property: the run's configuration",
    "send": "queues a message or a stream for one peer, or for the other end of a socket",
    "start": "begins processes or work, once all arguments are known",
    "write": "puts its argument or its state on disk, or into its place in shared memory",
}
"""Names of methods that more classes may have, each with its meaning."""
SHARED_CLASSES = {
    # A log entry, and the event that reports it: the event's kind on disk is its class's name.
    *("Attempt", "Commit", "Elected", "Left", "Lost", "Member", "View", "Witness"),
}
"""Names of classes that occur on several floors. On one floor each name occurs once."""


def classes() -> Iterator[tuple[str, ast.ClassDef]]:
    """Each class of the packages, after the path of its file."""
    for source in read_sources():
        if source.path.startswith(tuple(f"{floor}/" for floor in PACKAGES)):
            yield from ((source.path, x) for x in source.nodes if isinstance(x, ast.ClassDef))


def classes_of_methods() -> dict[str, set[str]]:
    """By name of a method, the classes that define it. Special methods have Python's names."""
    found = defaultdict[str, set[str]](set)
    for path, node in classes():
        for method in node.body:
            if not isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if not method.name.startswith("__"):
                found[method.name].add(f"{path}:{node.name}")
    return found


def test_a_method_name_of_many_classes_has_one_meaning() -> None:
    counts = {name: len(where) for name, where in classes_of_methods().items()}
    crowded = {name for name, count in counts.items() if count > METHOD_CLASSES_MAX}
    assert crowded == SHARED_METHODS.keys()
    assert len(crowded) <= SHARED_METHODS_MAX


def test_a_class_name_occurs_once() -> None:
    floors = defaultdict[str, list[str]](list)
    for path, node in classes():
        floors[node.name].append(path.partition("/")[0])
    assert {name for name, where in floors.items() if len(where) > len(set(where))} == set()
    assert {name for name, where in floors.items() if len(where) > 1} == SHARED_CLASSES
