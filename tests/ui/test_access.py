"""Who may see the page."""

import pytest

from lineage_stash.ui.access import COOKIE, Access, Verdict, is_own_name

HERE = "127.0.0.1:8266"
TOKEN = "Bearer the cluster's"


@pytest.fixture
def access() -> Access:
    return Access(lambda header: header == TOKEN)


def judge(access: Access, target: str = "/", **headers: str) -> Verdict:
    said = {"Host": HERE, **headers}
    return access.judge(target, lambda name: said.get(name, ""))


def test_request_without_anything_is_refused(access: Access) -> None:
    assert judge(access) is Verdict.REFUSE
    assert judge(access, "/facts?key=") is Verdict.REFUSE


def test_key_is_exchanged_for_a_cookie_that_opens_the_page(access: Access) -> None:
    assert judge(access, f"/?key={access.key}") is Verdict.WELCOME
    cookie = access.cookie.partition(";")[0]
    assert access.key not in cookie
    assert judge(access, Cookie=f"other=1; {cookie}") is Verdict.SERVE


@pytest.mark.parametrize("cookie", [f"{COOKIE}=", f"{COOKIE}=guessed", "\x00=;;", "stash-ui"])
def test_wrong_cookie_is_refused(access: Access, cookie: str) -> None:
    assert judge(access, Cookie=cookie) is Verdict.REFUSE


def test_key_of_another_server_is_refused(access: Access) -> None:
    assert judge(access, f"/?key={Access(lambda _: False).key}") is Verdict.REFUSE


def test_token_of_the_cluster_opens_the_page_to_tools(access: Access) -> None:
    assert judge(access, Authorization=TOKEN) is Verdict.SERVE
    assert judge(access, Authorization="Bearer another") is Verdict.REFUSE


def test_page_under_a_strange_name_is_refused_whatever_it_brings(access: Access) -> None:
    assert judge(access, f"/?key={access.key}", Host="rebound.example:8266") is Verdict.MISDIRECTED


@pytest.mark.parametrize(
    ("host", "is_own"),
    [
        ("127.0.0.1:8266", True), ("localhost:9000", True), ("[::1]:8266", True), ("LOCALHOST", True), ("", False),
        ("127.0.0.1.example:80", False), ("example", False), ("[::1", False),
    ],
)  # fmt: skip
def test_names_of_this_machine(host: str, is_own: bool) -> None:
    assert is_own_name(host) is is_own
