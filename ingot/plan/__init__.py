"""What each value is stored as, and why: solved from what ops force and what was measured."""

from ingot.plan.model import Decision, Plan, Slot, Storage
from ingot.plan.solve import solve

__all__ = ["Decision", "Plan", "Slot", "Storage", "solve"]
