"""Whether input is usable (M2.3, I40)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastgood.core.input_checks import (
    MOST_IN_METADATA_BYTES,
    check_input,
    check_metadata,
    check_remote_dir,
    check_title,
    first_words,
    fork_title,
)
from lastgood.errors import InvalidRequest, TooLarge
from lastgood.model.messages import Message, Role, ToolCall, assistant, tool_result, user
from lastgood.model.sessions import TurnKind

LIMIT = 100
CALL = ToolCall("1", "read", "{}")


@pytest.mark.parametrize(
    ("messages", "kind"),
    [
        ([user("hello")], TurnKind.RUN),
        ([user("one"), user("two")], TurnKind.RUN),
        ([user("one"), assistant("two"), user("three")], TurnKind.RUN),
        ([user("one"), assistant("", CALL), tool_result("1", "x"), user("two")], TurnKind.RUN),
        ([assistant("")], TurnKind.APPEND),
        ([tool_result("1", "")], TurnKind.APPEND),
        ([tool_result("1", "x")], TurnKind.RUN),
        ([assistant("", CALL), tool_result("1", "x")], TurnKind.RUN),
        ([user("hello"), assistant("hi")], TurnKind.APPEND),
        ([Message(Role.SYSTEM, "be kind")], TurnKind.APPEND),
        ([user("a"), Message(Role.SYSTEM, "be kind")], TurnKind.RUN),
        ([user("🧭 ünïcode \n\t\x7f")], TurnKind.RUN),
        ([user("x" * LIMIT)], TurnKind.RUN),
        ([], TurnKind.RESET),
    ],
)
def test_usable_input_is_accepted(messages: list[Message], kind: TurnKind) -> None:
    check_input(messages, kind, LIMIT)


@pytest.mark.parametrize(
    ("messages", "kind", "why"),
    [
        ([], TurnKind.RUN, "is empty"),
        ([], TurnKind.APPEND, "is empty"),
        ([user("")], TurnKind.RUN, "message 1 is blank"),
        ([user("a"), user(" \n\t")], TurnKind.RUN, "message 2 is blank"),
        ([user(" ")], TurnKind.APPEND, "message 1 is blank"),
        ([user("a"), assistant("b")], TurnKind.RUN, "must have the role"),
        ([Message(Role.SYSTEM, "be kind")], TurnKind.RUN, "must have the role"),
        ([user("a"), tool_result("1", "x")], TurnKind.RUN, "must have the role"),
        ([assistant("", CALL), tool_result("2", "x")], TurnKind.RUN, "must have the role"),
        ([user("a\x00b")], TurnKind.RUN, "NUL"),
        ([user("ü\x00")], TurnKind.RUN, "NUL"),
        ([user("a\ud800b")], TurnKind.RUN, "surrogate"),
        ([user("\udfff")], TurnKind.APPEND, "surrogate"),
        ([assistant("", ToolCall("1", "read", "\x00")), user("a")], TurnKind.RUN, "NUL"),
        ([assistant("", ToolCall("1", "re\ud800ad", "{}")), user("a")], TurnKind.RUN, "surrogate"),
        ([assistant("", ToolCall("\x00", "read", "{}")), user("a")], TurnKind.RUN, "NUL"),
        ([tool_result("\ud800", "x"), user("a")], TurnKind.RUN, "surrogate"),
    ],
)
def test_M2_3_unusable_input_is_refused_with_its_reason(
    messages: list[Message], kind: TurnKind, why: str
) -> None:
    with pytest.raises(InvalidRequest, match=why):
        check_input(messages, kind, LIMIT)


@pytest.mark.parametrize(
    "messages",
    [
        [user("x" * (LIMIT + 1))],
        [user("ü" * (LIMIT // 2 + 1))],
        [user("x" * LIMIT), user("y")],
        [assistant("", ToolCall("1", "read", "x" * LIMIT)), user("y")],
    ],
)
def test_I40_the_limit_counts_the_bytes_of_everything_together(messages: list[Message]) -> None:
    with pytest.raises(TooLarge, match=str(LIMIT)):
        check_input(messages, TurnKind.RUN, LIMIT)


@pytest.mark.parametrize(
    ("title", "kept"),
    [("A title", "A title"), ("  two \n lines ", "two lines"), ("x" * 200, "x" * 200), ("日本", "日本")],
)
def test_a_title_is_kept_on_one_line(title: str, kept: str) -> None:
    assert check_title(title) == kept


@pytest.mark.parametrize("title", ["", " \n", "x" * 201, "a\x00b", "\ud800"])
def test_a_useless_title_is_refused(title: str) -> None:
    with pytest.raises(InvalidRequest):
        check_title(title)


@pytest.mark.parametrize(
    ("messages", "title"),
    [
        ([], ""),
        ([assistant("hi")], ""),
        ([assistant("hi"), user("first"), user("second")], "first"),
        ([user(" one\n two ")], "one two"),
        ([user("x" * 50)], "x" * 50),
        ([user("x" * 51)], "x" * 49 + "…"),
        ([user("word " * 20)], "word word word word word word word word word…"),
    ],
)
def test_M3_7_a_title_is_made_of_the_first_words_of_the_user(messages: list[Message], title: str) -> None:
    assert first_words(messages) == title


@given(st.text(), st.integers(min_value=2, max_value=60))
def test_a_made_title_is_short_and_on_one_line(text: str, limit: int) -> None:
    title = first_words([user(text)], limit)
    assert len(title) <= limit
    assert title == " ".join(title.split())
    assert bool(title) == bool(text.split())


@pytest.mark.parametrize(
    ("title", "forks", "made"),
    [
        ("", 3, ""),
        ("tale", 0, "tale (fork 1)"),
        ("tale", 2, "tale (fork 3)"),
        ("tale (fork 1)", 0, "tale (fork 2)"),
        ("tale (fork 1)", 4, "tale (fork 5)"),
        ("tale (fork)", 0, "tale (fork 2)"),
        ("x" * 200, 0, "x" * 191 + " (fork 1)"),
    ],
)
def test_forks_are_counted_in_their_titles_and_do_not_pile_up(title: str, forks: int, made: str) -> None:
    assert fork_title(title, forks) == made
    assert not made or check_title(made) == made


def test_metadata_have_a_bound_in_bytes() -> None:
    """Every list of sessions carries them."""
    room = MOST_IN_METADATA_BYTES - len('{"a":""}')
    for text in ("x" * room, "ü" * (room // 2)):
        assert check_metadata({"a": text}) == {"a": text}
        with pytest.raises(TooLarge, match=f"{MOST_IN_METADATA_BYTES:,}"):
            check_metadata({"a": text + "x"})


@pytest.mark.parametrize("path", ["/", "/home/ann/project", "~/project"])
def test_a_folder_of_another_machine_is_taken_as_it_is(path: str) -> None:
    assert check_remote_dir(path) == path


@pytest.mark.parametrize("path", ["", "project", "../up", "~", "~bob/project", "C:\\project", "/a\0b"])
def test_a_folder_of_another_machine_is_absolute_text(path: str) -> None:
    with pytest.raises(InvalidRequest):
        check_remote_dir(path)
