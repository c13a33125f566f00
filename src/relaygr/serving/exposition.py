"""Prometheus metrics of several processes as one page: each sample says whose it is."""

from __future__ import annotations

import re
from collections.abc import Mapping

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
LABEL = "replica"


def merged(pages: Mapping[str, str]) -> str:
    """Pages in the text format by replica; one that is no such page loses the lines that make no sense."""
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for replica, page in pages.items():
        family = ""
        for line in page.splitlines():
            words = line.split(None, 3)
            if line.startswith("# ") and len(words) >= 3 and words[1] in ("HELP", "TYPE"):
                family = words[2]
                head = heads.setdefault(family, [])
                if not any(one.startswith(f"# {words[1]} ") for one in head):
                    head.append(line)
            elif line and not line.startswith("#"):
                told = _labelled(line, replica)
                if told:
                    samples.setdefault(family, []).append(told)
    lines = [line for family in heads for line in (*heads[family], *samples.get(family, ()))]
    return "\n".join(lines) + "\n"


def _labelled(line: str, replica: str) -> str:
    name = _NAME.match(line)
    if name is None:
        return ""
    rest = line[name.end() :]
    if rest.startswith("{"):
        return f'{name[0]}{{{LABEL}="{replica}",{rest[1:]}'
    return f'{name[0]}{{{LABEL}="{replica}"}}{rest}'
