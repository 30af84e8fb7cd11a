"""The tokens that the log has seen, with the nodes that came by each."""

import json
from dataclasses import replace

from lowcomm.daemon.token_list import audit_json, came_by, token_of, tokens_json
from protocols.messages import log_entries as e
from protocols.state.tokens import ROOT, renewed
from tests.protocols.scenes import A, B, C, D, info, log_of, members_of, ordered, run

TERMS = e.TokenTerms("0f" * 16, "5e" * 32, 3, 1000, witness=False, issuer=ROOT)
OF_FOUNDER = replace(TERMS, number="aa" * 16, uses=1)


def spent(peer: str, terms: e.TokenTerms = TERMS) -> e.TokenSpent:
    return e.TokenSpent(terms, type(A)(peer), "1e" * 32, peer.encode(), b"s", b"p")


STORY = (run(founder=A), spent(A, OF_FOUNDER), e.Member(info(A)), spent(B), spent(C))


def test_each_token_is_listed_with_its_nodes() -> None:
    later = e.TokenSpent(renewed(spent(B)), D, "1e" * 32, b"d", b"", b"")
    gone = (e.Revoked(C, A, "stolen"), e.TokenRevoked(TERMS.number, A, ""))
    run_state = members_of(log_of(*STORY, later, *gone))
    answer = json.loads(tokens_json(run_state))
    assert answer["issuers"] == "voters"
    founders, other = answer["tokens"]
    assert (founders["founder"], founders["nodes"][0]["peer"]) == (True, A)
    assert founders["nodes"][0]["here"]
    assert (other["number"], other["uses"], other["role"]) == (TERMS.number, 3, "member")
    assert (other["issuer"], other["revoked"], other["expires"]) == ("", True, 1000)
    nodes = {node["peer"]: node["revoked"] for node in other["nodes"]}
    assert nodes == {B: False, C: True, D: False}, "d is the node of b, under another id"
    assert token_of(run_state, D) == TERMS.number
    assert came_by(run_state, TERMS.number) == [B, D]


def test_a_token_that_a_voter_has_issued_is_listed_before_it_is_used() -> None:
    issued = e.TokenIssued(replace(TERMS, number="bb" * 16, issuer=A))
    tokens = json.loads(tokens_json(members_of(log_of(*STORY, issued))))["tokens"]
    assert [(each["number"], len(each["nodes"])) for each in tokens[1:]] == [
        (TERMS.number, 2),
        ("bb" * 16, 0),
    ]
    assert tokens[-1]["issuer"] == A


def test_acts_are_listed_in_the_order_of_the_log() -> None:
    terms = replace(TERMS, number="bb" * 16, issuer=A)
    token = ordered(e.TokenRevoked(TERMS.number, A, "in a chat"))
    log = log_of(*STORY, token, e.TokenIssued(terms), e.Revoked(C, A, "stolen"))
    acts = json.loads(audit_json(members_of(log)))["acts"]
    assert [list(act.values()) for act in acts] == [
        [6, "token revoked", TERMS.number, "root key", A, "in a chat", True, 0],
        [7, "token issued", "bb" * 16, A, A, "", False, 0],
        [8, "node revoked", C, A, A, "stolen", False, 0],
    ]


def test_in_a_run_in_the_clear_there_is_none() -> None:
    assert json.loads(tokens_json(members_of(log_of(run(), e.Member(info(A))))))["tokens"] == []
