"""The data model: schema, samples, values, faults, digests, locators. It imports no other room."""
