"""Secure aggregation: the server learns the sum of what sites send, and nothing of a single one.

After Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017. Every site adds
to its numbers a mask of its own, and one mask for each other site, which cancels in the sum. Shares of the secrets are
with the other sites, so that the sum can still be unmasked when a site drops out in mid-round.
"""
