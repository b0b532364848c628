#!/usr/bin/env python3
"""Fails when a file includes against the layers.

core <- strategies, tensor_parallel <- compat <- examples <- benchmarks

`strategies` and `tensor_parallel` never include each other; they meet in `core`.
"""

import pathlib
import re
import sys

MAY_USE = {
    "core": {"core"},
    "strategies": {"core", "strategies"},
    "tensor_parallel": {"core", "tensor_parallel"},
    "compat": {"core", "strategies", "tensor_parallel", "compat"},
    "examples": {"core", "strategies", "tensor_parallel", "compat", "examples"},
    "benchmarks": {"core", "strategies", "tensor_parallel", "compat", "examples", "benchmarks"},
}
INCLUDE = re.compile(r'^\s*#\s*include\s*["<](?:cleave/)?([a-z_]+)/')


def violations(root):
    for layer, allowed in MAY_USE.items():
        for path in sorted((root / layer).rglob("*")):
            if path.suffix not in {".h", ".cc", ".cu", ".cuh"}:
                continue
            for number, line in enumerate(path.read_text().splitlines(), 1):
                match = INCLUDE.match(line)
                if match and match[1] in MAY_USE and match[1] not in allowed:
                    yield f"{path.relative_to(root)}:{number}: {layer} must not include {match[1]}: {line.strip()}"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[1])
    found = list(violations(root))
    print("\n".join(found) if found else "layers: ok")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
