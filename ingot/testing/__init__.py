"""A kit for authors of targets: `conformance("my-target")` casts small nets and says what the target does wrong."""

from ingot.testing.conformance import conformance
from ingot.testing.outcomes import CaseOutcome, ConformanceReport

__all__ = ["CaseOutcome", "ConformanceReport", "conformance"]
