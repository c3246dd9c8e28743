"""Accounting records of the formats: one module per format, which declares an `AccountedFormat`."""
