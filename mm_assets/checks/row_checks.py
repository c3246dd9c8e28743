"""The checks that every asset made of interleaved rows carries."""

from mm_assets.io_managers.check_results import LEDGER_BALANCE, MATERIALIZATION_ERRORS, SCHEMA_ALIGNMENT
from mm_assets.io_managers.sharded import ShardCheck

BALANCED = ShardCheck(
    LEDGER_BALANCE, "Items in = out + filtered + quarantined, by count and by digest.", blocking=True
)
ROW_CHECKS = (
    ShardCheck(SCHEMA_ALIGNMENT, "Reserved columns are canonical, no column was left out.", blocking=True),
    ShardCheck(MATERIALIZATION_ERRORS, "No item carries an error; what happens if one does is the policy's."),
    BALANCED,
)
