"""JSON schema of what users write, for editors: `ingot schema > recipe.schema.json`, `ingot schema fleet`."""

from __future__ import annotations

import json

from pydantic import TypeAdapter

from ingot.config.recipe import Recipe


def recipe_schema() -> str:
    """Of a recipe in TOML or JSON."""
    return schema_of(Recipe, "Ingot recipe")


def schema_of(kind: type, title: str) -> str:
    schema = TypeAdapter(kind).json_schema(mode="validation")
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return json.dumps({**head, **schema, "title": title}, indent=1)
