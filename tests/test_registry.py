"""The registry: names lead to classes, mistakes name the key and what would be right."""

import sys
from pathlib import Path
from typing import Protocol

import pytest
from pydantic import PositiveInt

from rft_core.algorithms import algorithms
from rft_core.engines import engines
from rft_core.environments import environments
from rft_core.errors import ConfigError
from rft_core.operators import operators
from rft_core.registry import ExtensionConfig, Registry
from rft_core.rewards import rewards


class Shape(Protocol):
    def area(self) -> float: ...


class SquareConfig(ExtensionConfig):
    side: PositiveInt = 1
    label: str = ""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """An importable package of its own, with a registry, an extension and a heavy half."""
    name = f"shapes_{abs(hash(request.node.name))}"
    folder = tmp_path / name
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "base.py").write_text(f"from rft_core.registry import Registry\nshapes = Registry('shape', {name!r}, heavy=('heavy',))\n")
    (folder / "dot.py").write_text(
        f"from {name}.base import shapes\n"
        "@shapes.register('dot')\n"
        "class Dot:\n"
        '    """A point.\n\n    It has no area.\n    """\n'
        "    def __init__(self, config, scale=1):\n"
        "        self.scale = scale\n"
    )
    (folder / "heavy.py").write_text("raise RuntimeError('the heavy half was imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def registry_of(package: str) -> Registry[Shape]:
    found: Registry[Shape] = __import__(f"{package}.base", fromlist=["shapes"]).shapes
    return found


def test_a_package_is_searched_at_the_first_lookup_but_for_its_heavy_half(package: str) -> None:
    shapes = registry_of(package)
    assert shapes.names() == ["dot"]
    assert f"{package}.heavy" not in sys.modules
    assert shapes.get("dot", "shape").name == "dot"


def test_an_extension_is_built_with_its_config_and_what_its_kind_is_given(package: str) -> None:
    assert registry_of(package).build("dot", {}, "shape", scale=3).scale == 3  # type: ignore[attr-defined]


def make() -> Registry[Shape]:
    shapes: Registry[Shape] = Registry("shape", "rft_core.algorithms")
    shapes._discovered = True  # these have no package of their own
    return shapes


def test_the_config_is_checked_and_names_the_key() -> None:
    shapes = make()

    @shapes.register("square", config=SquareConfig)
    class Square:
        def __init__(self, config: SquareConfig) -> None:
            self.config = config

    assert shapes.build("square", {"side": "3"}, "shape").config == SquareConfig(side=3)  # type: ignore[attr-defined]
    for args, said in (
        ({"side": 0}, "shape.args.side: found 0; input should be greater than 0"),
        ({"sise": 2}, "shape.args.sise: found 2; unknown key; the keys here are: side, label"),
        ({"side": None}, "shape.args.side: found None; input should be a valid integer"),
    ):
        with pytest.raises(ConfigError) as raised:
            shapes.build("square", args, "shape")
        assert str(raised.value) == said
    with pytest.raises(ConfigError, match="shape.name: found 'circle'; a shape is one of square, or package.module:Name"):
        shapes.configure("circle", {}, "shape")


def test_a_name_is_given_once() -> None:
    shapes = make()

    @shapes.register("square")
    class Square: ...

    shapes.register("square")(Square)  # the same class again, as when a module is run twice
    with pytest.raises(ValueError, match="shape 'square' is registered twice"):
        shapes.register("square")(type("Other", (), {}))


def test_code_outside_the_repository_is_named_by_its_path(package: str) -> None:
    shapes = registry_of(package)
    assert shapes.get(f"{package}.dot:Dot", "shape").name == "dot"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("class Plain: ...", "it must be decorated with the shape registry's `register`"),
        ("", "has no attribute 'Plain'"),
        ("def (", "it must load without an error (SyntaxError: "),
        ("1 / 0", "it must load without an error (ZeroDivisionError: division by zero)"),
        ("import nothing_of_this_name", "must be importable here (No module named 'nothing_of_this_name')"),
        ("raise SystemExit(3)", "it must load without an error (SystemExit: 3)"),
        ("raise ValueError('two\\nlines')", "(ValueError: two lines)"),
    ],
)
def test_what_cannot_be_imported_is_one_line(code: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"own_{abs(hash(code))}"
    (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError) as raised:
        make().get(f"{name}:Plain", "shape.name")
    assert said in str(raised.value)
    assert str(raised.value).startswith(f"shape.name: found '{name}:Plain'; ")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", [":Name", "module:", ":", "a b:c", "..x:y"])
def test_malformed_names_are_one_line(name: str) -> None:
    with pytest.raises(ConfigError, match="shape.name"):
        make().get(name, "shape.name")


def test_all_built_in_extensions_have_a_sentence_and_a_frozen_config() -> None:
    for registry in (algorithms, engines, environments, operators, rewards):
        assert registry.names() == sorted(registry.names()) != []
        for name in registry.names():
            extension = registry.get(name, "key")
            assert extension.name == name
            assert len((extension.factory.__doc__ or "").split()) > 2
            assert extension.config_class.model_config["frozen"]
            assert extension.config_class.model_config["extra"] == "forbid"
