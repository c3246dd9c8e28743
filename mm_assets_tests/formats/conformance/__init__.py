"""What every format promises: each test runs over the table of formats, new ones included."""
