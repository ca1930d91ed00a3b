"""The kinds of values that an agent file may hold, as data.

The schema consists of them. The reader, the JSON schema for editors and the documentation are generated from
the same table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Text:
    """Any scalar is text as it was written. `choices`: one of these, and nothing else."""

    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Flag:
    pass


@dataclass(frozen=True, slots=True)
class Whole:
    least: int | None = None
    most: int | None = None


@dataclass(frozen=True, slots=True)
class Number:
    """`least` itself is allowed, unless `above` says that it is not."""

    least: float | None = None
    most: float | None = None
    above: bool = False


@dataclass(frozen=True, slots=True)
class Span:
    """A length of time: `90s`, `1m30s`, or a number of seconds. Read as seconds."""


@dataclass(frozen=True, slots=True)
class Anything:
    """Whatever JSON can say. `mapping`: only a mapping of it."""

    mapping: bool = False


@dataclass(frozen=True, slots=True)
class ListOf:
    """`or_one`: a single value without a list is accepted."""

    of: Kind
    least: int = 0
    or_one: bool = False


@dataclass(frozen=True, slots=True)
class MapOf:
    """A mapping of names that the author of the file chooses."""

    of: Kind
    least: int = 0
    most: int | None = None


@dataclass(frozen=True, slots=True)
class Either:
    """The first that fits is meant."""

    kinds: tuple[Kind, ...]


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a section.

    `later` says what does not happen as long as the key is not supported. `until` is the last
    version of the format that had it, and `instead` what is written since.
    """

    kind: Kind
    about: str
    later: str = ""
    required: bool = False
    until: int | None = None
    instead: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """A mapping with known keys. `open`: other keys are allowed, too."""

    name: str
    title: str  # of one of them, in a sentence
    keys: Mapping[str, Key]
    open: bool = False


@dataclass(frozen=True, slots=True)
class Variant:
    """What a section of this type has beside the keys that every type has.

    `needs`: each of these; `exactly_one`: one of these, and not two.
    """

    about: str
    keys: tuple[str, ...] = ()
    later: str = ""
    needs: tuple[str, ...] = ()
    exactly_one: tuple[str, ...] = ()
    not_together: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Typed:
    """A section whose key `type` decides which others it may have."""

    section: Section
    shared: tuple[str, ...]  # keys that every type has
    types: Mapping[str, Variant]
    implied: str = ""  # the type where none is given; empty: one must be given


Kind = Text | Flag | Whole | Number | Span | Anything | ListOf | MapOf | Either | Section | Typed

TEXT = Text()
FLAG = Flag()
TEXTS = ListOf(TEXT)
TEXT_MAP = MapOf(TEXT)
