"""What a user may ask for: recipes, scopes and tensor specs."""
