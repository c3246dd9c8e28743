"""Alerts: what is wrong now, told once to people, and that it is over.

causes     what is wrong now, as plain data from the Dagster instance
messages   a cause as text: what, how much, what to do, where to look
incidents  which causes have been told already
outbox     messages that still have to reach a target
targets    where messages go, by Apprise
sensor     one tick: causes -> incidents -> messages -> outbox -> targets
"""
