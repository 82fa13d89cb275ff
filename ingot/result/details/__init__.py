"""Every value of a casting as plain data: what a report shows."""
