"""A fleet: many models, targets and recipes, cast cell by cell; here or on a Ray cluster."""
