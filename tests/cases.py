"""The one table: every layer configuration, room by room; each contract runs over all rows."""

import importlib
import pkgutil

import rows
from case import Case

CASES: list[Case] = [
    case
    for module in pkgutil.iter_modules(rows.__path__)
    for case in importlib.import_module(f"rows.{module.name}").CASES
]
