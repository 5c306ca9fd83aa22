"""Import from and export to other libraries' formats."""
