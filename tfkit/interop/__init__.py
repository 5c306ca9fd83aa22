"""To and from other libraries' formats."""
