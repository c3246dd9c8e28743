"""Accounting: records, ledger, quarantine, surveys, schema contract, proofs, comparison of datasets."""
