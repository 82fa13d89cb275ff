"""Every value of a casting as plain data, for the report."""
