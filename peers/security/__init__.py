"""Keys and certificates of a run, and the dialogue in which a node gets its own.

In: a join token or the authority's key. Out: TLS contexts, certificates for admitted nodes, and
errors that say which side's clock or token is wrong. Must NOT decide how often a token may be
spent, nor which peer is revoked: the log does.

Start reading: certificates.py; certificate_client.py and certificate_issuer.py are the two sides.
"""
