"""HTML becomes text, quickly, whatever it is."""

import time

import pytest

from lastgood.engine.tools.html_text import MOST_CHARACTERS, to_markdown, to_text

PAGE = """<!doctype html>
<html><head><title>T &amp; t</title><style>p { color: red }</style>
<script>if (a < b) document.write("</p>never")</script></head>
<body><!-- hidden <b>too</b> -->
<h1>One <em>two</em></h1>
<p>First<br>second   <a href="/x?a=1&amp;b=2">a
 link</a>, <a href="#x">anchor</a>, <a href="javascript:x()">script</a>.</p>
<ul><li>a</li><li>b<ol><li>c</li><li>d</li></ol></li></ul>
<pre>def f():
    return   1 &lt; 2</pre>
<table><tr><th>A</th><th>B</th></tr><tr><td>1<td>2</table>
<img src="i.png" alt="pic"><hr>1 < 2 <b>end</b>
"""


def test_a_page_becomes_markdown() -> None:
    assert to_markdown(PAGE, "https://example.com/d/") == (
        "T & t\n\n# One *two*\n\nFirst\nsecond [a link](https://example.com/x?a=1&b=2), anchor, script.\n\n"
        "- a\n- b\n  1. c\n  2. d\n\n```\ndef f():\n    return   1 < 2\n```\n\n| A | B\n| 1 | 2\n\n"
        "![pic](https://example.com/d/i.png)\n\n---\n\n1 < 2 **end**"
    )


def test_a_page_becomes_text() -> None:
    text = to_text(PAGE)
    assert "second a link, anchor, script." in text
    assert not {"#", "*", "[", "http", "never", "color", "hidden"} & set(text.replace(".", " ").split())


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("", ""),
        ("plain", "plain"),
        ("a < b", "a < b"),
        ("a <", "a <"),
        ("<p>a<p>b", "a\n\nb"),
        ("<b>a", "a"),
        ("a<!-- never", "a"),
        ("a<script>never", "a"),
        ("a<SCRIPT>never</Script >b", "ab"),
        ("a<a href='>'>b</a>", "ab"),
        ("a<a href='never", "a"),
        ("a&nbsp;b&#x20AC;&bogus;", "a b€&bogus;"),
        ("&#0;&#xD800;&#99999999999;", "\ufffd\ufffd\ufffd"),
        ("<p>\n  a\n  b\n</p>", "a b"),
        ("</p></ul></ol></pre></a>x", "x"),
        ("<li>a", "- a"),
    ],
)
def test_broken_html_gives_what_there_is(html: str, text: str) -> None:
    assert to_text(html) == text


def test_a_link_without_a_target_is_its_text() -> None:
    page = "<a>a</a><a href='http://[bad'>b</a><a href='data:x'>c</a><a href='mailto:x'>d</a></a>"
    assert to_markdown(page, "https://example.com") == "abc[d](mailto:x)"


# Each of them takes the parser of the standard library minutes.
@pytest.mark.parametrize(
    "piece",
    ["<a", "<!--", "<!", "</", "<a ", "<a b='", "<a b='>", '<a b="><', "<script>", "<script></", "&", "&#",
     "<![CDATA[", "<?", "<", "<a a", "<ul><li>", "<a href=x>", "<pre>", "\n", " <i> ", "<svg><svg",
     "<a href='x y", "<a '>'"],
)  # fmt: skip
def test_I40_no_page_keeps_us_busy(piece: str) -> None:
    """Four times the page may cost four times as much, and not sixteen times."""
    base = "https://example.com/" + "x" * 1500

    def cost(size: int) -> float:
        html = piece * (size // len(piece))
        began = time.process_time()
        to_text(html)
        to_markdown(html, base)
        return time.process_time() - began

    whole = cost(256 * 1024)
    assert whole < 0.5 or whole < 10 * max(cost(64 * 1024) for _ in range(3))
    markdown = to_markdown(piece * (256 * 1024 // len(piece)), base)
    assert len(markdown) < MOST_CHARACTERS + 10_000
