"""The result of a cast: the casting, its details, its report, its scenario folder."""
