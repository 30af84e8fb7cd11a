"""The run's side of admission: does with real keys what protocols/peer/certificates.py decides.

It checks what the log cannot know: the seal of a token, and the time. Must NOT decide how often a
token may be spent (the log).
"""

from collections.abc import Callable
from pathlib import Path

from peers.connections.clock_skew import token_ended
from peers.connections.mesh import Mesh
from peers.security.certificates import Authority, earlier_peer, root_of, untimely
from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.messages import peer as m
from protocols.state import ANOTHER, Token, decode_token, spending
from protocols.types import ConfigError, PeerId
from protocols.wire import one_line

FORGED = "this is no token of this run: ask for one (`lowcomm token DIRECTORY` on its machines)"


class CertificateIssuer:
    """The issuer of a node with a certificate. `feed` gives the core an event."""

    def __init__(self, directory: Path, mesh: Mesh, feed: Callable[[v.Event], None]) -> None:
        """Raises ConfigError."""
        self._directory = directory
        self._mesh = mesh
        self._feed = feed
        self._authority = Authority.load(directory)
        self._root = root_of(directory)
        feed(v.Secured(has_key=self._authority is not None))

    def do(self, command: c.AtTheGate) -> None:
        """Do a command of the core. Raises OSError if the authority's key cannot be stored."""
        match command:
            case c.Sign():
                self._feed(self._signed(command))
            case c.Answer(number=number, certificate=certificate, why=why, final=final):
                refused = m.NotAdmitted(why, final)
                answer = m.Admitted(certificate, self._root) if certificate else refused
                self._mesh.answer(number, answer)
            case c.GiveKey(peer=peer):
                if self._authority is not None:
                    self._mesh.send(peer, m.AuthorityKey(self._authority.key_bytes()))
            case c.TakeKey(key=key):
                made = Authority.received(key, self._directory)
                if made is not None and self._authority is None:
                    made.save(self._directory)
                    self._authority = made
                    self._feed(v.Secured(has_key=True))

    def _signed(self, sign: c.Sign) -> v.Signed | v.NotSigned:
        authority, admit = self._authority, sign.admit
        asker = sign.asker, sign.number
        if authority is None:
            why = "the leader does not have the authority's key yet"
            return v.NotSigned(*asker, why, final=False)
        earlier = PeerId("")
        if admit.certificate:
            found, earlier = _renewed(authority, admit)
        else:
            found = _sealed(authority, admit)
        if isinstance(found, str):
            return v.NotSigned(*asker, found, final=True)
        try:
            certificate = authority.sign(admit.peer, admit.key)
        except ValueError as error:
            return v.NotSigned(*asker, one_line(str(error)), final=True)
        return v.Signed(*asker, spending(found, admit.peer, admit.key), certificate, earlier)


def _renewed(authority: Authority, admit: m.Admit) -> tuple[Token | str, PeerId]:
    """A certificate of this run counts as a token for one other certificate; returns that token (or
    why not) and its peer."""
    earlier = earlier_peer(
        admit.certificate, admit.proof, admit.peer, admit.key, authority=authority.public
    )
    if earlier is None:
        why = "the certificate that this node had is none of this run: join with a token"
        return why, PeerId("")
    if why := untimely(admit.certificate):
        return one_line(f"the certificate that this node had does not count: {why}"), PeerId("")
    return Token(("",), authority.public, earlier.number, 1, earlier.expires), earlier.peer


def genuine(authority: Authority, word: str) -> Token:
    """Decode and check a token. Raises ConfigError if it is not of this run."""
    token = decode_token(word)
    if token.authority != authority.public or not token.is_sealed(authority.token_key):
        raise ConfigError(FORGED)
    return token


def _sealed(authority: Authority, admit: m.Admit) -> Token | str:
    try:
        token = genuine(authority, admit.token)
    except ConfigError:
        return FORGED
    ended = token_ended(token.expires)
    return f"{ended}: {ANOTHER}" if ended else token
