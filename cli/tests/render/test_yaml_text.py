"""YAML that was written to hurt, or by somebody who erred: one sentence with line and column, at once."""

import pytest

from pdd_cli.yaml_text import MOST_DEPTH, load_all

BOMB = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10))
MERGES = "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 10))
CHAIN = "- &a0 [x]\n" + "".join(f"- &a{n} [*a{n - 1}]\n" for n in range(1, 2000))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (BOMB, "line 1, column 1: aliases must not repeat more than 100,000 nodes"),
        (MERGES, "aliases must not repeat more than 100,000 nodes"),
        (CHAIN, "must not be nested deeper than 100 levels"),
        ("\n" + "[" * 50_000, "line 2, column 101: must not be nested deeper than 100 levels"),
        ("".join(f"{' ' * level}a:\n" for level in range(500)), "must not be nested deeper than 100 levels"),
        ("[" * (MOST_DEPTH + 1) + "]" * (MOST_DEPTH + 1), "must not be nested deeper than 100 levels"),
        ("spec: &a {prefill: *a}", "line 1, column 7: an alias must not stand within what it names"),
        ("a: 1\nb: !!int ''", "line 2, column 4: `` must be of type int"),
        ("a: !!bool abc", "line 1, column 4: `abc` must be of type bool"),
        ("a: !!timestamp abc", "line 1, column 4: `abc` must be of type timestamp"),
        ("a: !!int yes", "line 1, column 4: `yes` must be of type int"),
        ("a: !!int 12:30", "line 1, column 4: `12:30` must be of type int"),
        ("a: !!binary abc", "line 1, column 4: failed to decode base64 data"),
        ("a: {b: -.inf}", "line 1, column 8: `-.inf` must be a number that JSON has"),
        ("a: .nan", "line 1, column 4: `.nan` must be a number that JSON has"),
        ("a: {1: x}", "line 1, column 5: a key must be a string: write '1' with quotes"),
        ("a: {<<: {on: x}}", "line 1, column 10: a key must be a string: write 'on' with quotes"),
        ("? [a]\n: b", "line 1, column 3: a key must be a string"),
        ("a: b\nc: \x01", "line 2: it has a character that no text has"),
        ("a: *b", "line 1, column 4: found undefined alias"),
        ("a: !!int [1]", "line 1, column 4"),
    ],
)
def test_what_is_refused(text: str, says: str) -> None:
    with pytest.raises(ValueError, match="must be YAML: line") as caught:
        load_all(text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_aliases_are_taken() -> None:
    assert load_all("a: &a {b: [1]}\nc: *a\nd: {<<: *a, e: *a}") == [
        {"a": {"b": [1]}, "c": {"b": [1]}, "d": {"b": [1], "e": {"b": [1]}}}
    ]


def test_a_long_text_without_aliases_is_taken() -> None:
    (found,) = load_all("[" + "1," * 20_000 + "1]")
    assert len(found) == 20_001


def test_tags_that_a_user_wrote_are_taken() -> None:
    text = (
        "[!!float 1, !!float 1.5, !!str 5, !!bool on, !!int '12', !!null '', !!timestamp 2024-01-02, !!binary aGVsbG8=]"
    )
    assert load_all(text) == [[1, 1.5, "5", True, 12, None, "2024-01-02", "hello"]]


def test_what_merges_among_keys_is_text_among_values() -> None:
    assert load_all("a: <<\nb: =") == [{"a": "<<", "b": "="}]


def test_doubled_keys_are_taken_where_somebody_else_takes_them() -> None:
    assert load_all("a: 1\na: 2", doubled_keys=True) == [{"a": 2}]
