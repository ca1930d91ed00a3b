"""Answers in the console: what becomes bold or code, and that no answer holds up the server."""

from __future__ import annotations

import time

import pytest

from lastgood.surfaces.console.markdown import markdown


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("**a** b **c**", "<p><b>a</b> b <b>c</b></p>"),
        ("**a *b* c**", "<p><b>a *b* c</b></p>"),
        ("** a ** and 2 ** 3", "<p>** a ** and 2 ** 3</p>"),
        ("**a\nb**", "<p>**a\nb**</p>"),
        ("**a **b**", "<p><b>a **b</b></p>"),
        ("`a` ``b ` c`` `", "<p><code>a</code> <code>b ` c</code> `</p>"),
        ("`**a**` **b**", "<p><code>**a**</code> <b>b</b></p>"),
        ("**<i>**", "<p><b>&lt;i&gt;</b></p>"),
    ],
)
def test_bold_and_code(text: str, html: str) -> None:
    assert markdown(text) == html


def table(*rows: str) -> str:
    inside = "".join(f"<tr>{row}</tr>" for row in rows[1:])
    return (
        '<div class="table" tabindex="0" role="region" aria-label="Table"><table>'
        f"<thead><tr>{rows[0]}</tr></thead><tbody>{inside}</tbody></table></div>"
    )


@pytest.mark.parametrize(
    ("text", "html"),
    [
        (
            "| a | b |\n|---|--:|\n| **1** | `x|y` |\n| <i> |",
            table(
                '<th scope="col">a</th><th scope="col" class="num">b</th>',
                '<td><b>1</b></td><td class="num"><code>x|y</code></td>',
                "<td>&lt;i&gt;</td>",
            ),
        ),
        (
            "before\na | b\n:-- | :-:\n1 \\| 2 | 3 | more\n\nafter",
            "<p>before</p>"
            + table('<th scope="col">a</th><th scope="col">b</th>', "<td>1 | 2</td><td>3</td>")
            + "<p>after</p>",
        ),
        ("a | b\nc | d", "<p>a | b\nc | d</p>"),
        ("a\n---\nb", "<p>a</p><hr><p>b</p>"),
        (
            "> quoted **text**\n> more\n\nafter",
            "<blockquote><p>quoted <b>text</b>\nmore</p></blockquote><p>after</p>",
        ),
        ("> > > deep", "<blockquote><p>&gt; &gt; deep</p></blockquote>"),
    ],
)
def test_tables_lines_and_quotes(text: str, html: str) -> None:
    assert markdown(text) == html


WIDE_TABLE = "|" * 24_000 + "\n" + "|-" * 200 + "\n" + "|\n" * 10_000


@pytest.mark.parametrize(
    "text", [WIDE_TABLE, "|" * 45_000, "|-" * 22_000, "| a |\n" * 8_000 + "|---|\n", "> " * 20_000]
)
def test_half_tables_and_quotes_take_time_in_proportion_to_the_text(text: str) -> None:
    began = time.process_time()
    assert len(markdown(text)) < 30 * len(text)
    assert time.process_time() - began < 3


@pytest.mark.parametrize(
    "text",
    ["**a " * 12_000, "a" + "`" * 5_000 + "a" * 44_000 + " `", "``a` " * 9_000],
    ids=["bold that never closes", "a long run of backticks", "backticks"],
)
def test_marks_without_an_end_take_time_in_proportion_to_the_text(text: str) -> None:
    """Pages are rendered on the event loop: while one takes long, every lease of the server runs out."""
    began = time.process_time()
    assert markdown(text).startswith("<p>")
    assert time.process_time() - began < 3


def test_a_very_long_answer_is_shown_as_it_is() -> None:
    assert markdown("**<** " * 20_000) == (
        f'<pre tabindex="0" aria-label="Answer">{"**&lt;** " * 20_000}</pre>'
    )
