"""Reads YAML of others.

A merge key (`<<`) copies what it names, and copies can be merged again: a few lines would become more than
fits into any memory. So what merges copy is limited. Aliases copy nothing.
"""

from __future__ import annotations

from typing import Any

import yaml

_MOST_MERGED = 100_000
_MERGE, _VALUE, _TEXT = (f"tag:yaml.org,2002:{name}" for name in ("merge", "value", "str"))
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _BoundedLoader(_Loader):  # type: ignore[misc]  # which of the two it is, the machine decides
    merged = 0

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        copied: list[tuple[yaml.Node, yaml.Node]] = []
        own: list[tuple[yaml.Node, yaml.Node]] = []
        for key, value in node.value:
            if key.tag == _MERGE:
                for source in value.value if isinstance(value, yaml.SequenceNode) else (value,):
                    copied += self._copied(source)
            else:
                key.tag = _TEXT if key.tag == _VALUE else key.tag
                own.append((key, value))
        node.value = [*copied, *own]

    def _copied(self, source: yaml.Node) -> list[tuple[yaml.Node, yaml.Node]]:
        if not isinstance(source, yaml.MappingNode):
            raise yaml.YAMLError("only mappings can be merged")
        self.merged += len(source.value) + 1
        if self.merged > _MOST_MERGED:
            raise yaml.YAMLError("its merge keys copy too much")
        self.flatten_mapping(source)
        return list(source.value)


def read_yaml(body: bytes) -> Any:
    """YAMLError, ValueError or RecursionError: it is not YAML, or too much."""
    return yaml.load(body, Loader=_BoundedLoader)
