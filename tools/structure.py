"""Print how the coordinator's core is built: rooms, floors, imports between rooms, knots and circles.

    python tools/structure.py [FOLDER]

Reads imports at any depth, lazy and type-checking ones included. What lies directly in a folder is a room of it, a file
as well as a folder. A room's floor is the longest way down from it. Within a knot every room imports every other, at
last; no drawing lets all of its imports point down.
"""

from __future__ import annotations

import ast
import statistics
import sys
from collections import defaultdict
from pathlib import Path

CORE = Path("coordinator/aliquot/coordinator/core")

Graph = dict[str, set[str]]


def modules_of(root: Path) -> dict[str, Path]:
    """Dotted name -> file, for every module below a folder that is itself a package of `aliquot`."""
    parts = root.parts[root.parts.index("aliquot") :]
    found = {}
    for file in sorted(root.rglob("*.py")):
        inner = file.relative_to(root).with_suffix("").parts
        found[".".join(parts + (inner[:-1] if inner[-1] == "__init__" else inner))] = file
    return found


def imports_of(modules: dict[str, Path]) -> Graph:
    """Which module imports which, among these."""
    graph: Graph = {name: set() for name in modules}
    for name, file in modules.items():
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            named: list[str] = []
            if isinstance(node, ast.ImportFrom) and node.module:
                named = [
                    full if (full := f"{node.module}.{alias.name}") in modules else node.module for alias in node.names
                ]
            elif isinstance(node, ast.Import):
                named = [alias.name for alias in node.names]
            graph[name] |= {target for target in named if target in modules and target != name}
    return graph


def knots_of(graph: Graph) -> list[list[str]]:
    """Strongly connected parts of more than one member (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    knots: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for target in graph[name]:
            if target not in index:
                visit(target)
                low[name] = min(low[name], low[target])
            elif target in stack:
                low[name] = min(low[name], index[target])
        if low[name] == index[name]:
            part = [stack.pop()]
            while part[-1] != name:
                part.append(stack.pop())
            if len(part) > 1:
                knots.append(sorted(part))

    for name in graph:
        if name not in index:
            visit(name)
    return knots


def floors_of(graph: Graph, knots: list[list[str]]) -> int:
    """How many floors a drawing needs; a knot stands on one."""
    of = {name: min(knot) for knot in knots for name in knot}
    merged: Graph = defaultdict(set)
    for name, targets in graph.items():
        merged[of.get(name, name)] |= {of.get(target, target) for target in targets} - {of.get(name, name)}
    depth: dict[str, int] = {}

    def deep(name: str) -> int:
        if name not in depth:
            depth[name] = 1 + max((deep(target) for target in merged[name]), default=0)
        return depth[name]

    return max(deep(name) for name in list(merged))


def rooms_of(graph: Graph, container: str) -> Graph:
    """What lies directly in a container, files and folders alike, and which of it imports which."""
    depth = container.count(".") + 1
    rooms: Graph = {}
    for name, targets in graph.items():
        if name.startswith(f"{container}."):
            room = name.split(".")[depth]
            within = {target.split(".")[depth] for target in targets if target.startswith(f"{container}.")}
            rooms.setdefault(room, set()).update(within - {room})
    return rooms


def main(root: Path) -> None:
    """Print the tables."""
    sys.setrecursionlimit(10_000)
    modules = modules_of(root)
    graph = imports_of(modules)
    base = min(modules, key=len)
    lines = [len(file.read_text(encoding="utf-8").splitlines()) for file in modules.values()]
    circles = knots_of(graph)
    say = sys.stdout.write
    say(f"{len(modules)} files, {sum(lines)} lines, median {int(statistics.median(lines))}; ")
    say(f"{sum(file.name == '__init__.py' for file in modules.values())} folders; {len(circles)} circles of files\n\n")
    say(f"{'in':28}{'rooms':>8}{'floors':>8}{'imports':>9}{'in knots':>10}{'knots':>7}{'rooms in knots':>16}\n")
    for container in sorted(name for name, file in modules.items() if file.name == "__init__.py"):
        rooms = rooms_of(graph, container)
        knots = knots_of(rooms)
        tied = sum(len(rooms[room] & set(knot)) for knot in knots for room in knot)
        if rooms:
            label = container.removeprefix(base) or base.rpartition(".")[2]
            say(f"{label:28}{len(rooms):>8}{floors_of(rooms, knots):>8}")
            say(f"{sum(map(len, rooms.values())):>9}{tied:>10}{len(knots):>7}{sum(map(len, knots)):>16}\n")
    for circle in circles:
        say(f"circle: {', '.join(name.removeprefix(f'{base}.') for name in circle)}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else CORE)
