"""The URL of a call: values stay in their place, and none of them is the host."""

import pytest

from lastgood.core.url_template import environment_in, filled, names_in, why_not_an_endpoint


@pytest.mark.parametrize(
    ("template", "arguments", "url"),
    [
        ("https://a.example/${id}", {"id": "../b?c#d"}, "https://a.example/..%2Fb%3Fc%23d"),
        ("https://a.example?q=${ q }&n=${n}", {"q": "a&b=c"}, "https://a.example?q=a%26b%3Dc&n="),
        (
            "https://a.example/${encodeURIComponent(city)}",
            {"city": "São Paulo"},
            "https://a.example/S%C3%A3o%20Paulo",
        ),
        ("https://a.example/${n}/${yes}", {"n": 7, "yes": True}, "https://a.example/7/true"),
        ("https://a.example/${id}", {"id": "${other}", "other": "x"}, "https://a.example/%24%7Bother%7D"),
    ],
)
def test_values_are_encoded(template: str, arguments: dict[str, object], url: str) -> None:
    assert filled(template, arguments) == url


def test_names_and_variables_are_told_apart() -> None:
    template = "https://${env.HOST}/${id}?k=${env.KEY}&${encodeURIComponent(q)}&${env.HOST}"
    assert names_in(template) == {"id", "q"}
    assert environment_in(template) == ("${env.HOST}", "${env.KEY}")


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("https://a.example/${x}", None),
        ("http://localhost:8080/${x}", None),
        ("https://${env.HOST}/x", None),
        ("${env.BASE}/x", None),
        ("https://${host}/x", "an argument cannot be a part of its host"),
        ("https://a.${host}.example/x", "an argument cannot be a part of its host"),
        ("${url}", "must begin with https://"),
        ("ftp://a.example", "must begin with https://"),
        ("/x", "must begin with https://"),
        ("https://[a", "not a valid URL"),
    ],
)
def test_I39_the_host_is_the_files(template: str, words: str | None) -> None:
    found = why_not_an_endpoint(template)
    assert found is None if words is None else words in (found or "")


@pytest.mark.parametrize(
    ("template", "arguments"),
    [
        ("https://a.example/x/${id}/y", {"id": ".."}),
        ("https://a.example/x/${id}", {"id": "."}),
        ("https://a.example/x/${id}${id}", {"id": "."}),
        ("https://a.example/x/%2e${id}?q=1", {"id": "."}),
    ],
)
def test_a_value_leads_to_no_other_path(template: str, arguments: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="another path"):
        filled(template, arguments)


def test_dots_are_plain_text_everywhere_else() -> None:
    assert filled("https://a.example/${id}?q=${q}", {"id": "...", "q": "a/../b"}).endswith(
        "/...?q=a%2F..%2Fb"
    )


def test_I39_no_argument_continues_a_host_that_a_variable_holds() -> None:
    """The variable is filled in before."""
    assert why_not_an_endpoint("${env.BASE}${id}") is None
    with pytest.raises(ValueError, match="part of the host"):
        filled("https://a.example${id}", {"id": ".evil.example"})
    assert filled("https://a.example${id}/x", {}) == "https://a.example/x"


def test_I40_a_long_row_of_spaces_is_read_once() -> None:
    assert names_in(f"${{a{' ' * 300_000}") == frozenset()
    assert names_in("${ encodeURIComponent( a ) }${ b }") == {"a", "b"}
