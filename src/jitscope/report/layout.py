"""Lines of a terminal: what is too long is cut, or goes on in the next line."""

from __future__ import annotations

import textwrap


def cut(text: str, width: int) -> str:
    """The text, or its beginning and three dots."""
    text = text.rstrip()
    return text if len(text) <= width else text[: max(width - 3, 0)] + "..."


def wrapped(text: str, width: int) -> str:
    """The text in lines, all but the first of them indented."""
    return (
        "\n".join(
            textwrap.wrap(
                text,
                width,
                subsequent_indent="    ",
                break_long_words=False,
                break_on_hyphens=False,
            )
        )
        or text
    )
