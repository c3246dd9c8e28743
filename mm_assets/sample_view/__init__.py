"""One sample to look at: its items in order, what became of each, as a page or in the terminal."""
