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
