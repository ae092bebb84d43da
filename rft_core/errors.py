"""Every error that Tidemill raises on purpose.

```
TidemillError
├── UserError                  the user can put it right
│   ├── ConfigError            a key of the recipe: what was found, what would be right
│   ├── DataError              a task set or a row of it
│   ├── ModelError             a base model or its tokenizer
│   ├── RunError               a run directory: not there, in use, of another recipe
│   └── QueryError             a condition or question in SQL
├── AttemptError               one attempt failed: recorded as a row, never a crash
│   ├── EmptyPromptError
│   ├── PromptTooLongError
│   ├── DeadlineError          the attempt's one deadline passed
│   ├── RewardError            the scorer raised, or did not return what it promised
│   └── EngineError            the engine could not answer            (a retry helps)
├── RolloutError               too many attempts of a step failed
├── TrainingError              the update could not be made
│   └── NonFiniteError         loss or gradient not finite, too many times in a row
├── IntegrityError             stored bytes are not what was written
│   ├── SegmentError
│   ├── WeightsError
│   ├── CheckpointError
│   └── ReproducibilityError   a redone step gave another result where it must not
├── ChildError                 a process that the run needs failed too often, or does not end
└── LostClaimError             another trainer or explorer took over this run
```

Each message says what was found and, after a semicolon, what would be right. `retryable` tells whether
doing the same thing again can help. All of them survive pickling, so they cross process borders whole.
"""

from typing import Any, ClassVar


class TidemillError(Exception):
    """What was found, and what would be right.

    Args:
        found: What was found, and where; one line.
        remedy: What would be right, or what to do; one line, may be empty.
    """

    retryable: ClassVar[bool] = False

    def __init__(self, found: str, remedy: str = "") -> None:
        super().__init__(found, remedy)
        self.found = found
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.found}; {self.remedy}" if self.remedy else self.found


class UserError(TidemillError):
    """Something that the user can put right; shown as one line, without a traceback."""


class ConfigError(UserError):
    """A key of the recipe holds something that can't work.

    Args:
        key: The dotted path of the key, as in `rollout.group_size`.
        value: What the recipe says there.
        remedy: What would be right.
    """

    def __init__(self, key: str, value: Any, remedy: str) -> None:
        super().__init__(f"{key}: found {_shown(value)}", remedy)
        self.args = (key, value, remedy)
        self.key = key
        self.value = value


class DataError(UserError):
    """A task set, or a row of it, can't be used."""


class ModelError(UserError):
    """A base model or its tokenizer can't be used."""


class RunError(UserError):
    """A run directory is missing, in use, or belongs to another recipe."""


class QueryError(UserError):
    """A condition or question in SQL can't be answered."""


class AttemptError(TidemillError):
    """One attempt failed. The explorer records it as a row with this error's type and text."""


class EmptyPromptError(AttemptError):
    """The task's prompt has no tokens."""


class PromptTooLongError(AttemptError):
    """The prompt leaves no room for an answer in the model's context."""


class DeadlineError(AttemptError):
    """The attempt's one deadline passed, whatever it was doing."""


class RewardError(AttemptError):
    """A scorer raised, or did not return what it promised."""


class EngineError(AttemptError):
    """The engine could not answer this request."""

    retryable = True


class RolloutError(TidemillError):
    """Too many attempts of a step failed."""


class TrainingError(TidemillError):
    """The update could not be made."""


class NonFiniteError(TrainingError):
    """Loss or gradient was not finite too many times in a row."""


class IntegrityError(TidemillError):
    """Stored bytes are not what was written."""


class SegmentError(IntegrityError):
    """A segment or overlay file is missing, torn or altered."""


class WeightsError(IntegrityError):
    """A published version is missing, torn or altered."""


class CheckpointError(IntegrityError):
    """A trainer checkpoint is missing, torn or altered."""


class ReproducibilityError(IntegrityError):
    """A redone step gave another result where the run promises the same one."""


class ChildError(TidemillError):
    """A process that the run needs failed too often, or does not end."""


class LostClaimError(TidemillError):
    """Another process took over this run; this one must stop without committing anything."""


def _shown(value: Any, limit: int = 120) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
