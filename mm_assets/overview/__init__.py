"""What is in the data set, as figures and pictures for the UI."""
