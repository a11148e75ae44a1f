"""The schema of records in words: made of the types themselves, their fields, and the docstrings below these."""

import ast
import inspect
from pathlib import Path

from benchmarks.suite import records


class _Kind:
    """One struct as its source has it."""

    def __init__(self, node: ast.ClassDef) -> None:
        self.name = node.name
        self.words = ast.get_docstring(node) or ""
        self.fields: list[tuple[str, str, str]] = []
        for position, statement in enumerate(node.body):
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                self.fields.append((
                    statement.target.id, ast.unparse(statement.annotation), _docstring_at(node.body, position + 1)
                ))  # fmt: skip


def _docstring_at(body: list[ast.stmt], position: int) -> str:
    """The string that stands by itself at this place, which by custom describes what is before it."""
    if position < len(body):
        match body[position]:
            case ast.Expr(value=ast.Constant(value=str(words))):
                return " ".join(words.split())
            case _:
                pass
    return ""


def schema_markdown() -> str:
    """A table for each type of a record, and the words of each closed set."""
    tree = ast.parse(Path(inspect.getfile(records)).read_text(encoding="utf-8"))
    parts = [f"Schema {records.SCHEMA}."]
    for position, node in enumerate(tree.body):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Subscript(value=ast.Name(id="Literal")) as value):
                words = ", ".join(f"`{word}`" for word in ast.literal_eval(value.slice))
                parts.append(f"**{name}** is one of {words}. {_docstring_at(tree.body, position + 1)}")
            case ast.ClassDef():
                kind = _Kind(node)
                rows = "\n".join(
                    f"| `{field}` | `{annotation.replace('|', 'or')}` | {words.replace('|', '/')} |"
                    for field, annotation, words in kind.fields
                )
                words = " ".join(kind.words.split())
                parts.append(f"### {kind.name}\n\n{words}\n\n| field | type | |\n| --- | --- | --- |\n{rows}")
            case _:
                pass
    return "\n\n".join(parts)
