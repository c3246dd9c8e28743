"""Looking at data: one sample, a preview of filters, the overview of a data set."""
