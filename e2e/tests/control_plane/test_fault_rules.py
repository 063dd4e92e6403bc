"""Which call gets which fault, without any server."""

from pdd_e2e.control_plane.fault_rules import Answer, Book, Rule
from pdd_e2e.control_plane.request_info import RequestInfo


def call(verb: str = "create", resource: str = "pods", namespace: str = "a", agent: str = "operator/1") -> RequestInfo:
    return RequestInfo(verb, "", resource, namespace, "", agent)


def faulted(book: Book, count: int, one: RequestInfo) -> list[bool]:
    return [book.judge(one) is not None for _ in range(count)]


def test_without_rules_calls_are_counted_and_pass() -> None:
    book = Book()
    assert faulted(book, 3, call()) == [False] * 3
    assert faulted(book, 2, call("list")) == [False] * 2
    assert book.counts == {("operator/1", "create", "pods"): 3, ("operator/1", "list", "pods"): 2}
    assert book.writes == 3


def test_the_nth_and_so_many_more_are_faulted() -> None:
    book = Book()
    entry = book.add(Rule(fault=Answer(500), nth=2, times=2))
    assert faulted(book, 5, call()) == [False, True, True, False, False]
    assert (entry.matched, entry.hits) == (5, 2)


def test_without_a_number_of_times_all_further_are_faulted() -> None:
    book = Book()
    book.add(Rule(fault=Answer(500), nth=3, times=None))
    assert faulted(book, 5, call()) == [False, False, True, True, True]


def test_only_calls_that_match_all_that_is_given_count() -> None:
    rule = Rule(fault=Answer(500), verbs={"create"}, resource="pods", namespace="a", user_agent="operator", times=None)
    assert rule.matches(call())
    others = [call("patch"), call(resource="pods/status"), call(namespace="b"), call(agent="kubectl/1")]
    assert not any(rule.matches(other) for other in others)


def test_the_first_rule_that_covers_a_call_decides_and_all_count_it() -> None:
    book = Book()
    first = book.add(Rule(fault=Answer(409), nth=2))
    second = book.add(Rule(fault=Answer(500), times=None))
    assert [book.judge(call()) for _ in range(3)] == [Answer(500), Answer(409), Answer(500)]
    assert (first.hits, second.hits) == (1, 2)
    assert (first.matched, second.matched) == (3, 3)


def test_a_refusal_is_a_status_as_the_api_server_says_it() -> None:
    body = Answer(429, retry_after_seconds=3).body()
    assert (body["kind"], body["status"], body["code"]) == ("Status", "Failure", 429)
    assert body["reason"] == "TooManyRequests"
    assert body["details"] == {"retryAfterSeconds": 3}
    assert Answer(409).body()["details"] == {}
