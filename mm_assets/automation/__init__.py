"""Automation: what happens without a click."""
