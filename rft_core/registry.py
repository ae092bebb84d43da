"""One typed lookup by name for everything that can be extended: algorithms, rewards, environments, operators, engines.

An extension is a class in one file of its package, with a decorator that carries its name and a frozen config class:

```python
@rewards.register("exact", config=ExactConfig)
class Exact: ...
```

Code outside the repository is named `package.module:Name` in a recipe. Importing an extension's file imports no torch:
its heavy half is imported when it is built.
"""

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from rft_core.config import Section, config_error
from rft_core.errors import ConfigError

T = TypeVar("T")
C = TypeVar("C", bound=type[Any])


class ExtensionConfig(Section):
    """The arguments of one extension: frozen, unknown keys refused."""


@dataclass(frozen=True, slots=True)
class Extension(Generic[T]):
    """A registered class with its config class."""

    name: str
    config_class: type[ExtensionConfig]
    factory: Callable[..., T]


class Registry(Generic[T]):
    """The extensions of one kind.

    Args:
        kind: What they are called in messages, as in `reward`.
        package: The package whose modules hold them; imported at the first lookup.
        heavy: Modules of the package that are only imported when an extension is built.
    """

    def __init__(self, kind: str, package: str, heavy: tuple[str, ...] = ()) -> None:
        self.kind = kind
        self._package = package
        self._heavy = heavy
        self._known: dict[str, Extension[T]] = {}
        self._discovered = False

    def register(self, name: str, config: type[ExtensionConfig] = ExtensionConfig) -> Callable[[C], C]:
        """Decorate a class so that recipes can name it.

        Args:
            name: The name in recipes; must be new.
            config: The frozen class of its arguments; the class is built as `cls(config, **context)`.

        Raises:
            ValueError: The name is taken.
        """

        def decorate(cls: C) -> C:
            known = self._known.get(name)
            if known is not None and known.factory is not cls:
                raise ValueError(f"{self.kind} {name!r} is registered twice: {known.factory} and {cls}")
            self._known[name] = Extension(name, config, cls)
            return cls

        return decorate

    def names(self) -> list[str]:
        """The names of all built-in and registered extensions, sorted."""
        self._discover()
        return sorted(self._known)

    def get(self, name: str, key: str) -> Extension[T]:
        """Look an extension up.

        Args:
            name: A registered name, or `package.module:Name`.
            key: Where the recipe says so, for the message.

        Raises:
            ConfigError: There is no such extension.
        """
        if ":" in name:
            return self._outside(name, key)
        self._discover()
        if name not in self._known:
            raise ConfigError(key, name, f"a {self.kind} is one of {', '.join(self.names())}, or package.module:Name")
        return self._known[name]

    def configure(self, name: str, args: dict[str, Any], key: str) -> ExtensionConfig:
        """Validate the arguments of an extension against its own config class.

        Raises:
            ConfigError: The name is unknown, or an argument is; names the key.
        """
        extension = self.get(name, f"{key}.name")
        try:
            return extension.config_class.model_validate(args)
        except ValidationError as error:
            raise config_error(error, f"{key}.args", extension.config_class) from None

    def build(self, name: str, args: dict[str, Any], key: str, **context: Any) -> T:
        """Build an extension from its arguments and what its kind is given (tokenizer, seed, ...)."""
        config = self.configure(name, args, key)
        return self.get(name, key).factory(config, **context)

    def _discover(self) -> None:
        if self._discovered:
            return
        self._discovered = True
        package = import_module(self._package)
        for module in pkgutil.iter_modules(package.__path__):
            if module.name not in self._heavy:
                import_module(f"{self._package}.{module.name}")

    def _outside(self, name: str, key: str) -> Extension[T]:
        module_name, _, attribute = name.partition(":")
        try:
            target = getattr(import_module(module_name), attribute)
        except (ImportError, AttributeError) as error:
            raise ConfigError(key, name, f"package.module:Name must be importable here ({error})") from None
        except (Exception, SystemExit) as error:  # noqa: BLE001  a user's module: importing it may raise anything
            text = " ".join(str(error).split())
            raise ConfigError(key, name, f"it must load without an error ({type(error).__name__}: {text[:200]})") from None
        for extension in self._known.values():
            if extension.factory is target:
                return extension
        return self._adopt(name, target, key)

    def _adopt(self, name: str, target: Any, key: str) -> Extension[T]:
        """Make an extension of an outside object that carries no decorator; kinds that can, override this."""
        raise ConfigError(key, name, f"it must be decorated with the {self.kind} registry's `register`")
