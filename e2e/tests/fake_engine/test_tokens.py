"""The tokenizer and the template: nothing is lost, and a follow-up turn extends what was generated."""

from hypothesis import given
from hypothesis import strategies as st

from pdd_e2e.fake_engine.tokens import (
    END,
    FIRST_WORD,
    VOCABULARY,
    WORDS,
    Detokenizer,
    decode,
    encode,
    render_chat,
    split_output,
    tool_call_text,
)

WORD_TOKENS = st.lists(st.integers(FIRST_WORD, VOCABULARY - 1), min_size=1, max_size=20)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_text_survives(text: str) -> None:
    assert decode(encode(text)) == text


@given(WORD_TOKENS)
def test_generated_words_are_read_back_as_the_same_tokens(tokens: list[int]) -> None:
    assert encode(decode(tokens)) == tokens


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_streamed_text_is_whole_text(text: str) -> None:
    detokenizer = Detokenizer()
    pieces = [detokenizer.feed(token) for token in encode(text)]
    assert "".join([*pieces, detokenizer.finish()]) == text
    assert "\ufffd" not in "".join(pieces) or "\ufffd" in text


def test_vocabulary_has_no_word_twice() -> None:
    assert len(set(WORDS)) == len(WORDS)
    assert all(len(encode(word)) == 1 for word in WORDS)


@given(WORD_TOKENS)
def test_history_with_the_answer_extends_the_sequence(tokens: list[int]) -> None:
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "hello there"}]
    served = [*render_chat(messages, None), *tokens, END]
    messages += [{"role": "assistant", "content": decode(tokens)}, {"role": "user", "content": "more"}]
    assert render_chat(messages, None)[: len(served)] == served


def test_history_with_a_tool_call_extends_the_sequence() -> None:
    tools = [{"type": "function", "function": {"name": "look"}}]
    messages: list[dict[str, object]] = [{"role": "user", "content": "weather?"}]
    text = "I look." + tool_call_text("look", '{"at": "sky"}')
    served = [*render_chat(messages, tools), *encode(text), END]
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"at": "sky"}'}}
    messages += [
        {"role": "assistant", "content": "I look.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "blue"},
    ]
    assert render_chat(messages, tools)[: len(served)] == served
    assert split_output(text) == (None, "I look.", [("look", '{"at": "sky"}')])


def test_tools_and_parts_are_part_of_the_prompt() -> None:
    messages = [{"role": "user", "content": "hi"}]
    assert render_chat(messages, [{"type": "function", "function": {"name": "a"}}]) != render_chat(messages, None)
    parts = [{"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]}]
    assert render_chat(parts, None) == render_chat(messages, None)


def test_reasoning_is_taken_off() -> None:
    assert split_output("<think>hm</think>yes") == ("hm", "yes", [])
