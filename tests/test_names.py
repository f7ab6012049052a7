"""One name stands for one thing."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import headgate

PRODUCT = Path(headgate.__file__).parent


def test_no_two_public_classes_of_the_product_have_the_same_name() -> None:
    places = defaultdict(list)
    for path in sorted(PRODUCT.rglob("*.py")):
        if path.relative_to(PRODUCT).parts[0] == "bench":
            continue
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(PRODUCT)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
