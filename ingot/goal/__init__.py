"""Accuracy to a bar: metrics, goals, and the search for the quickest plan that meets them."""
