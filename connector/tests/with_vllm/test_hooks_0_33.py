"""Every line of `hooks.HOOKS` exists in the installed vLLM 0.32 and in the wheel of 0.33, which no CPU can run.

The wheel is downloaded once, by hash, into `.cache/` at the repository's root; only the Python files that the table names
stay there. Where it cannot be had the test fails: a hook that nobody looked at is not supported.
"""

import ast
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import zipfile
from functools import cache
from pathlib import Path

import pytest

from pdd_connector.hooks import HOOKS, NIXL_HOOKS, Hook

NEXT_VERSION = "0.33.0"
WHEEL_SHA256 = "4b6bdec4ab269990bf70d45a3c1e94c3760a27064513760193b26d6f0da883aa"
CACHE = Path(__file__).resolve().parents[3] / ".cache"

pytestmark = pytest.mark.timeout(300)


def _module_paths() -> list[str]:
    """Both places where a module of the table may be, relative to the folder that holds `vllm/`."""
    stems = sorted({hook.module.replace(".", "/") for hook in HOOKS})
    return [path for stem in stems for path in (f"{stem}.py", f"{stem}/__init__.py")]


def _download(folder: Path) -> Path:
    requirement = folder / "requirements.txt"
    requirement.write_text(f"vllm=={NEXT_VERSION} --hash=sha256:{WHEEL_SHA256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    command += ["--platform", "manylinux_2_28_x86_64", "--require-hashes", "-r", str(requirement), "-d", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    if done.returncode:
        pytest.fail(f"vLLM {NEXT_VERSION} could not be downloaded, so its hooks are unknown:\n{done.stderr}")
    (wheel,) = folder.glob("vllm-*.whl")
    return wheel


@pytest.fixture(scope="session")
def next_sources() -> Path:
    """The folder with 0.33's `vllm/`, as far as the table reads it."""
    sources = CACHE / f"vllm-{NEXT_VERSION}-sources"
    wanted = _module_paths()
    if sources.is_dir() and all((sources / path).is_file() or _sibling(sources, path) for path in wanted):
        return sources
    CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        wheel = _download(Path(scratch))
        fresh = Path(scratch) / "sources"
        with zipfile.ZipFile(wheel) as archive:
            names = set(archive.namelist())
            archive.extractall(fresh, [path for path in wanted if path in names])
        shutil.rmtree(sources, ignore_errors=True)
        fresh.rename(sources)
    return sources


def _sibling(sources: Path, path: str) -> bool:
    """Whether the module is in the other of its two places."""
    other = path.removesuffix("/__init__.py") + ".py" if path.endswith("/__init__.py") else f"{path[:-3]}/__init__.py"
    return (sources / other).is_file()


@pytest.fixture(scope="session")
def installed_sources() -> Path:
    spec = importlib.util.find_spec("vllm")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parents[1]


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _problem(sources: Path, hook: Hook) -> str | None:
    """What is wrong with the hook in these sources, or None."""
    stem = sources / hook.module.replace(".", "/")
    path = stem.with_suffix(".py") if stem.with_suffix(".py").is_file() else stem / "__init__.py"
    if not path.is_file():
        return f"{hook}: module is gone"
    body: list[ast.stmt] = _tree(path).body
    if hook.owner is not None:
        owners = [node for node in body if isinstance(node, ast.ClassDef) and node.name == hook.owner]
        if not owners:
            return f"{hook}: class is gone"
        body = owners[0].body
    if hook.parameters is None:
        return None if hook.name in _names(body) else f"{hook}: attribute is gone"
    functions = [n for n in body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef) and n.name == hook.name]
    if not functions:
        return f"{hook}: method is gone"
    found = _parameters(functions[-1].args, bound=hook.owner is not None)
    return None if found == hook.parameters else f"{hook}: parameters are {found}"


def _names(body: list[ast.stmt]) -> set[str]:
    """What the body defines or imports: its own names, and what its methods set on `self`."""
    names: set[str] = set()
    for statement in body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            names.update(alias.asname or alias.name for alias in statement.names)
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(statement.name)
        for node in ast.walk(statement):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            for target in targets:
                if isinstance(target, ast.Name) and node is statement:
                    names.add(target.id)
                if (
                    isinstance(target, ast.Attribute)
                    and isinstance(target.value, ast.Name)
                    and target.value.id == "self"
                ):
                    names.add(target.attr)
    return names


def _parameters(arguments: ast.arguments, *, bound: bool) -> tuple[str, ...]:
    plain = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    starred = [f"*{arguments.vararg.arg}"] if arguments.vararg else []
    keywords = [argument.arg for argument in arguments.kwonlyargs]
    doubled = [f"**{arguments.kwarg.arg}"] if arguments.kwarg else []
    return (*plain[1 if bound else 0 :], *starred, *keywords, *doubled)


@pytest.mark.parametrize("hook", [*HOOKS, *NIXL_HOOKS], ids=str)
def test_hook_is_installed(hook: Hook, installed_sources: Path) -> None:
    assert _problem(installed_sources, hook) is None


@pytest.mark.parametrize("hook", HOOKS, ids=str)
def test_hook_is_in_the_next_vllm(hook: Hook, next_sources: Path) -> None:
    assert _problem(next_sources, hook) is None


def test_what_is_replaced_is_called_by_that_name(installed_sources: Path, next_sources: Path) -> None:
    """Replacing a name that the module has and does not use would change nothing."""
    for sources in (installed_sources, next_sources):
        assert "sched_yield" in _called(sources / "vllm/distributed/device_communicators/shm_broadcast.py")
    assert {"nixlBind.nixlAgentConfig", "nixlBind.nixlAgent"} <= _called(installed_sources / "nixl_cu13/_api.py")


def _called(path: Path) -> set[str]:
    return {ast.unparse(node.func) for node in ast.walk(_tree(path)) if isinstance(node, ast.Call)}


@pytest.mark.parametrize(
    ("hook", "words"),
    [
        (Hook("vllm.no_such_module", None, "x"), "module is gone"),
        (Hook("vllm.v1.core.block_pool", "BlockPond", "touch", ("blocks",)), "class is gone"),
        (Hook("vllm.v1.core.block_pool", "BlockPool", "tickle", ("blocks",)), "method is gone"),
        (Hook("vllm.v1.core.block_pool", "BlockPool", "touch", ("block",)), "parameters are ('blocks',)"),
        (Hook("vllm.v1.core.block_pool", "BlockPool", "num_ponds"), "attribute is gone"),
    ],
)
def test_the_check_itself_sees_what_is_gone(hook: Hook, words: str, installed_sources: Path) -> None:
    problem = _problem(installed_sources, hook)
    assert problem is not None and words in problem


def test_next_vllm_speaks_another_connector_version(installed_sources: Path, next_sources: Path) -> None:
    """0.32 and 0.33 refuse each other, so both sides of a pair must run the same."""
    versions = [_connector_version(sources) for sources in (installed_sources, next_sources)]
    assert versions == [14, 15]


def _connector_version(sources: Path) -> int:
    tree = _tree(sources / "vllm/distributed/kv_transfer/kv_connector/v1/nixl/metadata.py")
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "NIXL_CONNECTOR_VERSION":
            assert isinstance(node.value, ast.Constant) and isinstance(node.value.value, int)
            return node.value.value
    raise AssertionError("NIXL_CONNECTOR_VERSION is gone")
