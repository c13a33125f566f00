"""What may go wrong with a slate."""

from __future__ import annotations

from relaygr.core.errors import BackendError, DeadlineError, RequestError


class InfeasibleError(RequestError):
    """No list satisfies the rules that may not be relaxed; `field` names the rule or the input."""


class SlateDeadlineError(DeadlineError):
    """The time of a slate ran out at `stage`; what is ready then is the answer."""

    def __init__(self, stage: str) -> None:
        super().__init__(f"budget_ms: ran out during {stage}")
        self.stage = stage


class SlateNanError(BackendError):
    """A step model, an evaluator or a generator gave NaN or an infinity; `what` says which."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}: not finite")
        self.what = what


class BrokenRuleError(BackendError):
    """A list that was about to be returned violates a rule that holds."""
