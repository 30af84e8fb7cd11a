"""Tokens are made from what lies in a directory: its root key, or a node that votes."""

import json
import os
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from lowcomm.config.schema import FileConfig, NodeConfig
from lowcomm.startup.identity import NodeDirectory, NodeRecord
from lowcomm.startup.join_tokens import new_token, open_run
from peers.security.keys import ROOT_KEY, Key, OwnKey
from peers.security.proofs import is_genuine, proof_of
from peers.security.proofs import new_token as signed_token
from peers.security.trust_store import TrustStore
from protocols.interface.commands import Trust
from protocols.messages.log_entries import TokenSpent
from protocols.state.tokens import decode_token, fingerprint
from protocols.types.errors import ConfigError
from protocols.types.ids import PeerId, PeerInfo

ROOT = Key.make()
NOBODY = 65534
"""A user without rights."""
NAMES = ("alpha", "beta", "gamma")


class Run:
    """Directories of nodes that know of each other."""

    def __init__(
        self, directory: Path, *, voters_issue: bool = True, operators: tuple[str, ...] = ()
    ) -> None:
        self.directory = directory
        entries = tuple(self._node(name) for name in NAMES)
        self.prints = [fingerprint(bytes.fromhex(entry.key)) for entry in entries]
        infos = [PeerInfo(x.peer, x.peer[:-2], 1, f"{x.peer[:-2]}:1", 0) for x in entries]
        for entry, name in zip(entries, NAMES, strict=True):
            store = TrustStore(directory / name)
            store.admitted_as(entry.peer, root=ROOT.hex, by=entry)
            voters = tuple(infos[:2])
            store.follow(Trust(ROOT.hex, entries, voters, voters_issue, operators))
            store.write(store.content())

    def _node(self, name: str) -> TokenSpent:
        place, peer = self.directory / name, PeerId(f"{name}.1")
        config = json.dumps(asdict(FileConfig(node=NodeConfig(name=name))))
        record = NodeRecord(peer=peer, name=name, incarnation=1, config=config, address=f"{name}:1")
        with closing(NodeDirectory(place)) as node:
            node.write(record)
        own = OwnKey(place)
        token = signed_token(ROOT, root=ROOT.public, uses=1, hours=1.0)
        signatures = (token.signature, proof_of(token, own.key.public))
        return TokenSpent(token.terms, peer, own.key.hex, own.certificate(peer), *signatures)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_a_voter_signs_with_its_own_key_and_names_all_voters(run: Run) -> None:
    token = decode_token(new_token(run.directory / "beta"))
    own = OwnKey(run.directory / "beta").key
    assert (token.issuer, token.root) == ("beta.1", ROOT.public)
    assert is_genuine(token.terms, token.signature, root=ROOT.hex, issuer_key=own.hex)
    assert token.addresses == ("beta:1", "alpha:1"), "the node here comes first"
    assert token.prints == (run.prints[1], run.prints[0])


def test_where_the_root_key_is_it_signs(run: Run) -> None:
    ROOT.save(run.directory / ROOT_KEY)
    token = decode_token(new_token(run.directory, witness=True, uses=3))
    assert (token.issuer, token.witness, token.uses) == ("", True, 3)
    assert is_genuine(token.terms, token.signature, root=ROOT.hex, issuer_key=ROOT.hex)
    assert set(token.prints) == set(run.prints)


def test_an_address_of_a_person_is_that_of_the_node_there(run: Run) -> None:
    token = decode_token(new_token(run.directory, advertise="beta:1"))
    assert token.addresses == ("beta:1",)
    assert token.prints[0] == run.prints[1]
    assert decode_token(new_token(run.directory, advertise="nat:9")).prints == tuple(run.prints)


def test_a_node_without_a_vote_signs_none(run: Run) -> None:
    with pytest.raises(ConfigError, match="no key that can sign a token"):
        new_token(run.directory / "gamma")


def test_where_operators_issue_no_voter_does(tmp_path: Path) -> None:
    run = Run(tmp_path, voters_issue=False)
    with pytest.raises(ConfigError, match="takes tokens of its operator only"):
        new_token(run.directory / "alpha")
    ROOT.save(run.directory / ROOT_KEY)
    assert decode_token(new_token(run.directory)).issuer == ""


def test_an_operator_signs_at_any_node_with_the_key_in_its_file(tmp_path: Path) -> None:
    key, file = Key.make(), tmp_path / "alice.pem"
    key.save(file)
    run = Run(tmp_path, voters_issue=False, operators=(key.hex,))
    token = decode_token(new_token(run.directory / "gamma", signer=file, uses=3))
    assert (token.issuer, token.root, token.uses) == (key.hex, ROOT.public, 3)
    assert is_genuine(token.terms, token.signature, root=ROOT.hex, issuer_key=key.hex)
    assert token.addresses[0] == "gamma:1"
    ROOT.save(file)
    assert decode_token(new_token(run.directory / "gamma", signer=file)).issuer == ""


def test_a_key_of_no_operator_signs_none(run: Run) -> None:
    file = run.directory / "eve.pem"
    with pytest.raises(ConfigError, match=r"eve\.pem does not exist"):
        new_token(run.directory / "gamma", signer=file)
    Key.make().save(file)
    with pytest.raises(ConfigError, match="is the key of no operator of this run"):
        new_token(run.directory / "gamma", signer=file)
    empty = run.directory / "empty"
    empty.mkdir()
    with pytest.raises(ConfigError, match="has no node of the run"):
        new_token(empty, signer=file, advertise="a:1")


def test_a_token_of_a_run_in_the_clear_has_addresses_only(run: Run) -> None:
    place = run.directory / "alpha"
    with closing(NodeDirectory(place)) as node:
        record = node.read()
        assert record is not None
        config = FileConfig(node=NodeConfig(name="alpha", insecure=True))
        node.write(replace(record, config=json.dumps(asdict(config))))
    token = decode_token(new_token(place))
    assert (token.addresses, token.secure) == (("alpha:1",), False)


def test_a_folder_that_cannot_be_entered_holds_no_node() -> None:
    """A disk that is mounted at the run's directory has such a one: lost+found."""
    with TemporaryDirectory() as place:
        run = Path(place) / "run"
        open_run(run, advertise="127.0.0.1:4711")
        (run / "lost+found").mkdir(mode=0)
        me = os.geteuid()
        for path in (Path(place), run, *run.iterdir()):
            os.chown(path, me or NOBODY, -1)
        try:
            os.seteuid(me or NOBODY)  # Root may enter all folders.
            assert decode_token(new_token(run)).addresses == ("127.0.0.1:4711",)
        finally:
            os.seteuid(me)
