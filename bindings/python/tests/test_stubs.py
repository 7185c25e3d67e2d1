"""The docstrings of the stub are those of the module."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import gatestream
from gatestream import _native

STUB = ast.parse((Path(gatestream.__file__).parent / "_native.pyi").read_text())
Documented = ast.ClassDef | ast.FunctionDef


def documented() -> list[tuple[str, str]]:
    """Names in the module, and their docstrings in the stub; a class has that of its constructor, too."""
    found = []
    for item in STUB.body:
        if not isinstance(item, Documented):
            continue
        text = ast.get_docstring(item) or ""
        for member in item.body if isinstance(item, ast.ClassDef) else []:
            if isinstance(member, ast.FunctionDef) and (doc := ast.get_docstring(member)):
                if member.name == "__new__":
                    text += "\n\n" + doc
                else:
                    found.append((f"{item.name}.{member.name}", doc))
        if text:
            found.append((item.name, text))
    return found


@pytest.mark.parametrize(("name", "text"), documented(), ids=[name for name, _ in documented()])
def test_docstring(name: str, text: str) -> None:
    value: object = _native
    for part in name.split("."):
        value = inspect.getattr_static(value, part)
    # A static method has the docstring of its function.
    value = getattr(value, "__func__", value)
    assert inspect.getdoc(value) == text


def test_every_class_is_documented() -> None:
    names = {name for name, _ in documented()}
    assert {"Session.run", "Engine.submit", "tune", "Model"} <= names and len(names) > 50
