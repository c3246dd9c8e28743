"""Alerts: what is wrong now, told once to people, and that it is over.

message         a `Cause`, and its text: what, how much, what to do, where to look
runs, checks    finders of causes in the Dagster instance
tick            one tick: causes -> incidents (what has been told) -> messages -> outbox; its sensor
delivery        the outbox of messages that still have to reach a target; targets, by Apprise
"""
