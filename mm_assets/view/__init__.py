"""Looking at data: one sample, a preview of filters, the report on a data set."""
