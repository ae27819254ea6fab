"""Bounds of hyper-parameters, each broken bound one clear line."""

from __future__ import annotations

from excise.errors import InputError


def at_least(name: str, value: float | int, least: float | int) -> None:
    if not value >= least:
        raise InputError(f"{name} = {value} is not allowed: it must be at least {least:g}")


def positive(name: str, value: float | int) -> None:
    if not 0 < value < float("inf"):
        raise InputError(f"{name} = {value} is not allowed: it must be a number above 0")


def within(name: str, value: float | int, low: float | int, high: float | int, *, open_low: bool = False) -> None:
    if not (low < value if open_low else low <= value) or not value <= high:
        raise InputError(f"{name} = {value} is not allowed: it must be {'above' if open_low else 'at least'} {low:g} and at most {high:g}")
