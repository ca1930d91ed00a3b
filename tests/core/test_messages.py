"""Messages and the bytes they are kept as: what goes in comes out, and nothing else goes to a model."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastgood.core.history import repair, valid_message
from lastgood.core.input_checks import check_input, check_results
from lastgood.errors import InvalidRequest, TooLarge
from lastgood.model.messages import (
    File,
    Image,
    Message,
    Part,
    Reasoning,
    Role,
    ToolCall,
    as_chat,
    as_json,
    assistant,
    decode,
    encode,
    from_json,
    text_of,
    tool_result,
    user,
    user_parts,
)
from lastgood.model.sessions import TurnKind

text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=20)
parts: st.SearchStrategy[Part] = st.one_of(
    text,
    st.builds(Image, text, st.none() | st.sampled_from(["low", "high"])),
    st.builds(File, text, text),
)
messages = st.one_of(
    st.builds(user, text),
    st.lists(parts, min_size=1, max_size=4).map(lambda some: user_parts(*some)),
    st.builds(tool_result, text, text),
    st.builds(
        lambda said, calls, thought: Message(Role.ASSISTANT, said, tuple(calls), reasoning=thought),
        text,
        st.lists(st.builds(ToolCall, text, text, text), max_size=2),
        st.none() | st.builds(Reasoning, text, text, text),
    ),
)

PICTURE = Image("data:image/png;base64,AAAA")


@given(st.lists(messages, max_size=5))
def test_what_is_stored_comes_back(some: list[Message]) -> None:
    assert decode(encode(some)) == tuple(some)


def test_a_message_of_parts_has_its_text() -> None:
    message = user_parts("look at", PICTURE, "please")
    assert message.content == text_of(message.parts) == "look at\nplease"
    assert as_chat(message)["content"] == [
        {"type": "text", "text": "look at"},
        {"type": "image_url", "image_url": {"url": PICTURE.url}},
        {"type": "text", "text": "please"},
    ]


def test_I4_reasoning_is_kept_but_is_no_part_of_the_chat_shape() -> None:
    thought = Message(Role.ASSISTANT, "4", reasoning=Reasoning("openai/x", "2 + 2", '{"sealed": 1}'))
    assert from_json(as_json(thought)) == thought
    assert "reasoning" not in as_chat(thought)


def test_parts_and_reasoning_become_valid_unicode_too() -> None:
    broken = user_parts("a\x00", Image("x\x00", "low"), File("n\x00", "d\x00"))
    assert valid_message(broken).parts == ("a\ufffd", Image("x\ufffd", "low"), File("n\ufffd", "d\ufffd"))
    thought = Message(Role.ASSISTANT, "4", reasoning=Reasoning("m", "\x00", "\x00"))
    assert valid_message(thought).reasoning == Reasoning("m", "\ufffd", "\ufffd")


def test_only_the_assistant_thinks() -> None:
    assert valid_message(Message(Role.USER, "q", reasoning=Reasoning("m"))).reasoning is None


def test_a_picture_without_words_is_not_blank() -> None:
    assert not user_parts(PICTURE).is_blank
    assert user_parts(" ").is_blank
    assert repair([user("q"), assistant(" ")]) == (user("q"),)
    check_input([user_parts(PICTURE)], TurnKind.RUN, 1000)


@pytest.mark.parametrize(
    "part", [Image("file:///etc/passwd"), Image("http://x/y.png"), File("x", "/etc/passwd"), Image("x\x00")]
)
def test_what_is_neither_sent_along_nor_on_the_open_web_is_refused(part: Part) -> None:
    with pytest.raises(InvalidRequest):
        check_input([user_parts("see", part)], TurnKind.RUN, 1000)


@pytest.mark.parametrize(
    "part", [Image("data:image/png;base64," + "A" * 99), File("n" * 9, "data:," + "A" * 99)]
)
def test_pictures_and_files_count_as_input(part: Part) -> None:
    check_input([user_parts("see", part)], TurnKind.RUN, 1000)
    with pytest.raises(TooLarge):
        check_input([user_parts("see", part)], TurnKind.RUN, 100)


def test_a_part_of_an_unknown_kind_is_an_error() -> None:
    with pytest.raises(ValueError, match="no such part"):
        from_json({"role": "user", "content": [{"type": "smell"}]})


@pytest.mark.parametrize(
    ("results", "fits"),
    [
        ((user("instead"),), True),
        ((tool_result("a", "1"), tool_result("b", "")), True),
        ((tool_result("b", "2"), tool_result("a", "1"), user("and")), True),
        ((tool_result("a", "1"),), False),
        ((tool_result("a", "1"), tool_result("c", "3")), False),
        ((tool_result("a", "1"), tool_result("a", "1")), False),
    ],
)
def test_results_answer_all_open_calls_and_no_others(results: tuple[Message, ...], fits: bool) -> None:
    calls = (ToolCall("a", "x", "{}"), ToolCall("b", "x", "{}"))
    check_input(results, TurnKind.RUN, 1000)
    if fits:
        check_results(results, calls)
        return
    with pytest.raises(InvalidRequest, match="a, b"):
        check_results(results, calls)


def test_results_where_nothing_is_open_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="No tool calls are open"):
        check_results([tool_result("a", "1")], ())
