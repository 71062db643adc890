"""Methods: a file a paper, and the table of them."""

from bdr.methods.base import Method
from bdr.methods.ucir import UCIR

METHODS: dict[str, type[Method]] = {
    "ucir": UCIR,
}

__all__ = ["METHODS", "UCIR", "Method"]
