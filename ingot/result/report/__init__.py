"""The report of a casting: text, plain data and one HTML page. Imports no torch, only plain-data modules."""
