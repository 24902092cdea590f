"""Curves through measured points: seconds that never fall and bend upwards, chances that never fall.

Both are least squares under constraints, by scipy. This file knows arrays only, and where the map's form is.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import isotonic_regression, nnls

from .budget import Floats
from .calibration import Nodes, reliability_by_promise
from .credit import Credit
from .errors import InputError

KNOTS = 16


def convex(x: Floats, y: Floats) -> Floats:
    """[n]: the monotone convex function at points x [n], ascending, closest to y [n] by relative squares.

    A constant and hinges that open at the points, with weights that are not negative: every such function on the
    points is one. Raises InputError unless x ascends and y is positive.
    """
    if len(x) < 2 or len(x) != len(y) or not (np.diff(x) > 0).all() or not (np.asarray(y) > 0).all():
        raise InputError("a convex fit needs two or more ascending points with positive values")
    hinges = np.maximum(0.0, np.subtract.outer(x, x[:-1]))  # the first is the line itself
    basis = np.column_stack([np.ones(len(x)), hinges])
    return _relative(basis, y)


def plane(columns: Floats, y: Floats) -> Floats:
    """[k]: the weights, none negative, of columns [n, k] whose sum is closest to y [n] by relative squares."""
    weights: Floats = nnls(columns / np.asarray(y)[:, None], np.ones(len(y)))[0]
    return weights


def _relative(basis: Floats, y: Floats) -> Floats:
    fitted: Floats = basis @ plane(basis, y)
    return fitted


def credit(nodes: Nodes, knots: int = KNOTS) -> Credit:
    """The map from scores to chances that real rounds suggest: isotonic over bins of equal promise.

    Bins of equal promise give most knots to the nodes that make up the expected length. Raises InputError for nodes
    that promise nothing.
    """
    bins = [each for each in reliability_by_promise(nodes.predicted, nodes.hit, knots) if each.predicted > 0]
    # Scores are rounded: above 1 is 1, and bins that promise the same are one.
    promised, knot = np.unique([min(each.predicted, 1.0) for each in bins], return_inverse=True)
    counts = np.bincount(knot, [each.count for each in bins])
    hits = np.bincount(knot, [each.count * each.realised for each in bins])
    shares = (hits + promised) / (counts + 1)  # one more node that keeps its word: no chance is 0 for want of nodes
    fitted = isotonic_regression(shares, weights=counts + 1).x
    return Credit(tuple(promised.tolist()), tuple(np.clip(fitted, 0, 1).tolist()))
