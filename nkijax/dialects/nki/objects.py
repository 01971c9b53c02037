"""The base class of kernels' own configuration classes."""

from __future__ import annotations

import inspect
from typing import Any


class NKIObject:
    """A plain record: `class Config(NKIObject): rows: int; dtype: str = nl.bfloat16`, then `Config(rows=4)`.

    Unless a subclass (or `@dataclass`) defines `__init__`, annotated fields are taken by position or keyword; one that
    is left out has its class default, or None.  `__post_init__` runs afterwards.  Objects are equal if type and fields
    are; the hash ignores values, so that fields may be lists.  Source: nki.language.NKIObject

    A `@dataclass` too has None where a field is left out, and a class without annotations has its plain attributes
    for fields: the vendor's compiler reads classes so, whatever Python's decorator would say.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        own = inspect.get_annotations(cls)
        plain = [name for name, value in vars(cls).items() if _is_plain(name, value)]
        if plain and not own:
            cls.__annotations__ = dict.fromkeys(plain, Any)
        for name in own:
            if not hasattr(cls, name):
                setattr(cls, name, None)

    def __init__(self, *args: Any, **kwargs: Any):
        cls = type(self)
        names = [n for base in reversed(cls.__mro__) for n in base.__dict__.get("__annotations__", ())]
        names = list(dict.fromkeys(names))
        if len(args) > len(names):
            raise TypeError(f"{cls.__name__}: takes {len(names)} fields, got {len(args)} positional arguments")
        given = dict(zip(names, args, strict=False))
        for name, value in kwargs.items():
            if name in given:
                raise TypeError(f"{cls.__name__}: got multiple values for field '{name}'")
            if names and name not in names:
                raise TypeError(f"{cls.__name__}: got an unexpected keyword argument '{name}'; fields: {names}")
            given[name] = value
        for name in (*names, *(n for n in given if n not in names)):
            setattr(self, name, given[name] if name in given else getattr(cls, name, None))
        self.__post_init__()

    def __post_init__(self) -> None:
        """For subclasses."""

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash((type(self), tuple(sorted(vars(self)))))

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({fields})"


def _is_plain(name: str, value: Any) -> bool:
    """Whether a class attribute is a value that a field can have for its default."""
    special = name.startswith("_") or callable(value) or hasattr(value, "__get__")
    return not special and type(value).__hash__ is not None
