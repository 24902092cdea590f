"""What a method needs before it can run: the right kind of drafter, and for a rule what is kept of earlier runs.

Costs come from this machine's profile (costs.py), chances from the map beside the drafter (credit.py).
"""

from __future__ import annotations

from dataclasses import replace

from .costs import load_costs
from .credit import load_credit
from .drafter import Drafter
from .errors import InputError
from .methods import METHODS, Settings
from .target import Target


def check_drafter(method: str, drafter: Drafter | None) -> None:
    """Raise InputError unless the drafter is of the kind the method needs."""
    wanted = METHODS[method]
    if wanted is None:
        return
    if drafter is None:
        raise InputError(f"method {method} needs a {wanted.drafter} drafter, none was given")
    if drafter.kind != wanted.drafter:
        raise InputError(
            f"method {method} needs a {wanted.drafter} drafter, {drafter.name or 'this one'} is {drafter.kind}"
        )


def equipped(settings: Settings, target: Target, drafter: Drafter | None) -> Settings:
    """The settings with all that an adaptive method's rule reads: the cap as budget, costs, and its map.

    Raises InputError for a drafter of the wrong kind, and where costs were not measured or no map was fitted.
    """
    check_drafter(settings.method, drafter)
    method = METHODS[settings.method]
    if method is None or method.rule is None or drafter is None:
        return settings
    costs, chances = settings.costs or load_costs(target, drafter), settings.chances
    if method.calibrated and chances is None:
        chances = load_credit(drafter, settings.sampling.temperature, settings.candidates)
    return replace(settings, budget=settings.max_budget, costs=costs, chances=chances)
