"""What a cast returns: casting, details, report, scenario."""
