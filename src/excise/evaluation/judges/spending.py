"""What asking a server has cost so far, and the limits that end it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Limits:
    """Where spending ends; None: no limit."""

    requests: int | None
    """Requests that are sent, those that are repeated included."""
    tokens: int | None
    """Tokens sent and received."""
    cost: float | None
    """In the currency of the prices."""
    input_price: float
    """Of one token that is sent."""
    output_price: float
    """Of one token that is received."""


@dataclass
class Spending:
    """Counts requests and tokens across threads.

    A request reserves a generous estimate before it is sent, so that limits hold with any number under way at once. When the
    server says what it really was, that takes its place; when it does not (a timeout), the reservation stands.
    """

    limits: Limits
    requests: int = 0
    sent: int = 0
    received: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def cost(self) -> float:
        """In the currency of the prices."""
        return self.sent * self.limits.input_price + self.received * self.limits.output_price

    def reserve(self, sent: int, received: int) -> str:
        """Takes a request of so many tokens into account; where it would exceed a limit nothing is taken, and the limit is returned."""
        with self._lock:
            limits = self.limits
            cost = self.cost + sent * limits.input_price + received * limits.output_price
            if limits.requests is not None and self.requests + 1 > limits.requests:
                return f"max_requests = {limits.requests}"
            if limits.tokens is not None and self.sent + self.received + sent + received > limits.tokens:
                return f"max_tokens = {limits.tokens}"
            if limits.cost is not None and cost > limits.cost:
                return f"max_cost = {limits.cost:g}"
            self.requests += 1
            self.sent += sent
            self.received += received
            return ""

    def settle(self, reserved: tuple[int, int], used: tuple[int, int]) -> None:
        """Replaces what was reserved by what was used."""
        with self._lock:
            self.sent += used[0] - reserved[0]
            self.received += used[1] - reserved[1]
