"""What the rights test stands on: rules as sets, calls as needs, and a rule less."""

from grants import Grant, granted, refused, used, without

from pdd_e2e.control_plane.audit import Call

RULES = [
    {"apiGroups": [""], "resources": ["services", "configmaps"], "verbs": ["create", "get"]},
    {"apiGroups": ["apps"], "resources": ["statefulsets"], "verbs": ["patch"]},
]
SERVICES_CREATE = Grant("", "services", "create")


def call(verb: str, resource: str, code: int, group: str = "") -> Call:
    return Call("id", "user", "agent", verb, group, resource, "namespace", "name", code, "2026-01-01T00:00:00Z")


def test_a_rule_grants_each_verb_on_each_resource() -> None:
    assert len(granted(RULES)) == 5
    assert SERVICES_CREATE in granted(RULES)


def test_a_removed_right_is_the_only_one_that_goes() -> None:
    for grant in granted(RULES):
        assert granted(without(RULES, grant)) == granted(RULES) - {grant}


def test_an_apply_that_creates_needs_two_rights() -> None:
    assert used([call("patch", "services", 201)]) == {SERVICES_CREATE, Grant("", "services", "patch")}
    assert used([call("patch", "services", 200)]) == {Grant("", "services", "patch")}


def test_what_was_refused_was_not_used() -> None:
    calls = [call("get", "services", 403), call("get", "configmaps", 404), call("create", "secrets", 409)]
    assert refused(calls) == {Grant("", "services", "get")}
    assert used(calls) == {Grant("", "configmaps", "get"), Grant("", "secrets", "create")}


def test_what_names_no_resource_needs_no_right_of_ours() -> None:
    assert used([call("get", "", 200)]) == set()


def test_what_everybody_may_needs_no_right_of_ours() -> None:
    assert used([call("create", "selfsubjectreviews", 201, "authentication.k8s.io")]) == set()
