"""Lance: one table of many partitions, any number of which is replaced in one commit."""
