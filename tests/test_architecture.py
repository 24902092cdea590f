"""The shape of the package: which module may import which, and how large a file or a function may grow.

The rules are checked on the source, by ast, so that they hold for modules which are not written yet.
"""

import ast
import io
import sys
import tokenize
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "dominotree_lite"

# What each module of the core may import of ours, besides `errors`. Everything not listed here lies outside
# the core: it may import the core, and the core may not import it.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "tree": set(),
    "scoring": set(),
    "build": {"tree", "scoring"},
    "budget": {"tree"},
    "verify": {"tree"},
    "drafter": set(),
    "target": set(),
    "text": set(),
    "files": set(),
    "packed": {"drafter"},
    "embedded": set(),
    "prompts": set(),
    "checkpoints": {"drafter", "target", "embedded", "files", "packed"},
    "costs": {"budget", "drafter", "target", "embedded", "files", "packed"},
    "credit": {"budget", "drafter", "checkpoints", "files"},
    "equip": {"costs", "credit", "methods", "drafter", "target"},
    "methods": {"budget", "build", "drafter", "scoring", "tree", "verify"},
}
ALLOWED["decode"] = set(ALLOWED) | {"cuda"}  # only when the graph engine is asked for, as a test in tests/cuda holds
# What a reader of the method reads: not what keeps and fetches files, nor how weights are laid out in memory.
METHOD = set(ALLOWED) - {"checkpoints", "embedded", "files", "packed", "prompts", "costs", "credit", "equip"}
CORE_LINES, FILE_LINES, FUNCTION_LINES = 1500, 350, 60
# Nothing but these may the core import from elsewhere: its declared dependencies and the standard library.
IMPORT_NAMES = {"huggingface-hub": "huggingface_hub"}
LAYOUT = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def module_name(path: Path, package: Path) -> str:
    return ".".join(path.relative_to(package).with_suffix("").parts).removesuffix(".__init__")


def modules(package: Path) -> dict[str, Path]:
    return {module_name(path, package): path for path in sorted(package.rglob("*.py"))}


def imported(path: Path, package: Path) -> set[str]:
    """Full names of all a file imports, at whatever depth of the file, relative imports resolved.

    `from a.b import c` counts as `a.b.c`, since `c` may be a module.
    """
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            here = [package.name, *path.relative_to(package).parent.parts]
            above = here[: len(here) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            names |= {f"{base}.{alias.name}" for alias in node.names}
    return names


def ours(path: Path, package: Path) -> set[str]:
    """First-level names of the package's own modules a file imports; the package itself is ''."""
    found = set()
    for name in imported(path, package):
        head, _, rest = name.partition(".")
        if head == package.name:
            first = rest.partition(".")[0]
            is_module = (package / f"{first}.py").exists() or (package / first).is_dir()
            found.add(first if first in ALLOWED or (first and is_module) else "")
    return found


def wrong_imports(package: Path) -> list[str]:
    wrong = []
    for name, path in modules(package).items():
        if name in ALLOWED:
            for other in sorted(ours(path, package) - ALLOWED[name] - {"errors", name}):
                wrong.append(f"{name} imports {other or 'the package itself'}")
    return wrong


def foreign_imports(package: Path, declared: set[str]) -> list[str]:
    allowed = declared | set(sys.stdlib_module_names) | {package.name}
    wrong = []
    for name, path in modules(package).items():
        if name in ALLOWED:
            heads = {full.partition(".")[0] for full in imported(path, package)}
            wrong += [f"{name} imports {head}" for head in sorted(heads - allowed)]
    return wrong


def code_lines(source: str) -> set[int]:
    """Numbers of the lines that hold code: no blank ones, no comments, no docstrings."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT and token.type not in LAYOUT:
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if documented and ast.get_docstring(node, clean=False) is not None:
            lines -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return lines


def long_functions(source: str, limit: int) -> list[str]:
    lines, found = code_lines(source), []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = len(lines & set(range(node.lineno, (node.end_lineno or 0) + 1)))
            if length > limit:
                found.append(f"{node.name} has {length} lines")
    return found


def declared_imports() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = [Requirement(text).name.lower() for text in project["dependencies"]]
    return {IMPORT_NAMES.get(name, name) for name in names}


# --- the package ----------------------------------------------------------------------------------------


def test_imports_go_one_way() -> None:
    assert wrong_imports(PACKAGE) == []


def test_core_needs_only_its_declared_dependencies() -> None:
    assert foreign_imports(PACKAGE, declared_imports()) == []


def test_core_stays_small() -> None:
    sizes = {
        name: len(code_lines(path.read_text(encoding="utf-8")))
        for name, path in modules(PACKAGE).items()
        if name in METHOD
    }
    assert sum(sizes.values()) < CORE_LINES, sizes


@pytest.mark.parametrize("name", sorted(modules(PACKAGE)))
def test_files_and_functions_stay_short(name: str) -> None:
    source = modules(PACKAGE)[name].read_text(encoding="utf-8")
    assert len(code_lines(source)) <= FILE_LINES
    assert long_functions(source, FUNCTION_LINES) == []


# --- the checks themselves: each finds what it is there for ---------------------------------------------


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    package = tmp_path / "dominotree_lite"
    (package / "viz").mkdir(parents=True)
    for name in (
        "__init__",
        "errors",
        "tree",
        "scoring",
        "build",
        "decode",
        "cli",
        "viz/__init__",
        "viz/draw",
    ):
        (package / f"{name}.py").touch()
    return package


@pytest.mark.parametrize(
    ("module", "line", "complaint"),
    [
        ("tree", "from dominotree_lite.scoring import Scorer", "tree imports scoring"),
        ("tree", "from . import scoring", "tree imports scoring"),
        ("tree", "def f():\n    import dominotree_lite.viz.draw", "tree imports viz"),
        ("scoring", "if TYPE_CHECKING:\n    from .tree import DraftTree", "scoring imports tree"),
        ("build", "from .decode import generate", "build imports decode"),
        ("decode", "from dominotree_lite import cli", "decode imports cli"),
        ("decode", "from dominotree_lite import generate", "decode imports the package itself"),
        ("decode", "import dominotree_lite", "decode imports the package itself"),
        ("decode", "from .viz.draw import picture", "decode imports viz"),
    ],
)
def test_a_wrong_import_is_found(planted: Path, module: str, line: str, complaint: str) -> None:
    assert wrong_imports(planted) == []
    (planted / f"{module}.py").write_text(line)
    assert wrong_imports(planted) == [complaint]


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("build", "from dominotree_lite.tree import DraftTree\nfrom . import scoring"),
        ("tree", "from dominotree_lite.errors import InputError\nimport json"),
        ("decode", "from .build import heap\nfrom dominotree_lite import tree"),
        ("cli", "import dominotree_lite\nfrom .viz import draw\nfrom .decode import generate"),
        ("viz/draw", "from ..tree import DraftTree\nimport networkx"),
    ],
)
def test_a_right_import_is_left_alone(planted: Path, module: str, line: str) -> None:
    (planted / f"{module}.py").write_text(line)
    assert wrong_imports(planted) == []


def test_a_foreign_import_is_found(planted: Path) -> None:
    (planted / "tree.py").write_text("import json, torch\ndef f():\n    from matplotlib import pyplot")
    (planted / "viz" / "draw.py").write_text("import matplotlib")
    assert foreign_imports(planted, {"torch"}) == ["tree imports matplotlib"]


def test_code_lines_are_counted_without_prose() -> None:
    source = '''"""Module
docstring."""

import os  # counts

# a comment
class A:
    """Docstring."""

    text = """counts
    twice"""

    def f(
        self,
    ) -> None:
        """Docstring.

        More.
        """
        # a comment
        return None
'''
    assert sorted(code_lines(source)) == [4, 7, 10, 11, 13, 14, 15, 21]
    assert long_functions(source, 3) == ["f has 4 lines"]
    assert long_functions(source, 4) == []
