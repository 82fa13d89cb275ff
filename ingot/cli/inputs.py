"""What the command line names: the model, its data, its recipe. Unused options are refused."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace

from ingot.config.recipe import Recipe, recipe_from
from ingot.data.named_inputs import Given, NamedInputs, given_inputs
from ingot.errors import InputError


def asked_recipe(options: argparse.Namespace) -> Recipe:
    """The recipe, with what single options of the command line set."""
    given = {"localize_seconds": options.localize_seconds, "prefer": getattr(options, "prefer", None)}
    return replace(recipe_from(options.recipe), **{key: value for key, value in given.items() if value is not None})


def given(options: argparse.Namespace) -> Given:
    return given_inputs(names_of(options))


def given_shards(options: argparse.Namespace) -> Given:
    """The model. The data is read where it is recorded; its first shard only where build() gives no example."""
    names = replace(names_of(options), mean=None, std=None)
    try:
        return given_inputs(names)
    except InputError:
        return given_inputs(replace(names, calibrate=options.data[0]))


def names_of(options: argparse.Namespace) -> NamedInputs:
    """The options that name a model and its data."""
    return NamedInputs(
        options.model, options.calibrate, getattr(options, "validation", None), options.mean, options.std,
        tuple(options.dynamic_shapes), options.data_option, tuple(options.shapes),
    )  # fmt: skip


def refuse_ignored_options(options: argparse.Namespace, why: str, names: Mapping[str, str]) -> None:
    """An option that would be ignored is an error; `names` are the options by their attributes."""
    unused = [flag for attribute, flag in names.items() if getattr(options, attribute, None) not in (None, False, [])]
    if unused:
        raise InputError(f"{', '.join(unused)} would be ignored", why=why, hint="leave it out")
