"""The configuration of a run: frozen, unknown keys refused, and it does nothing.

A recipe is a YAML file of these keys. Validating one returns or raises; it never writes, never looks at a device and
never changes a value. What follows from the values is worked out, with its reason, by `rft_core.plan`.
Paths are relative to the folder in which the run is started.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt


class Section(BaseModel):
    """One section of a recipe."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class ExtensionSpec(Section):
    """An extension by its name, with its own arguments."""

    name: str
    """A registered name, or `package.module:Name` for code outside the repository."""
    args: dict[str, Any] = {}
    """Validated against the extension's own config class."""


class RewardSpec(ExtensionSpec):
    """A reward with its share in the total."""

    weight: float = 1.0
    """The total is the sum of weight times score."""


class ModelConfig(Section):
    """The base model."""

    path: str
    """A folder, a Hugging Face id, or `package:NAME/FILE.gguf` for a GGUF file inside an installed Python package."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """What weights and activations are held in."""
    max_context: PositiveInt | None = None
    """Prompt and answer together, in tokens; the model's own limit if left out."""


class ExampleConfig(Section):
    """One worked example, shown to the model as two chat turns."""

    user: str
    assistant: str


class FormatConfig(Section):
    """How a row of the task set becomes a prompt. Templates name the row's fields, as in `"Reverse: {words}"`."""

    prompt: str = "{prompt}"
    """Template of the user's turn. Not used for rows that bring `messages`."""
    system: str | None = None
    """The system turn."""
    examples: tuple[ExampleConfig, ...] = ()
    """Worked examples between the system turn and the prompt."""
    answer: str = "answer"
    """The field with the right answer."""
    response: str = "response"
    """The field with an expert's whole reply, for supervised fine-tuning."""
    messages: str = "messages"
    """The field with ready chat turns, a list of {role, content}; taken where a row has it."""
    chat: bool = True
    """False: the prompt is raw text, without a chat template."""


class TaskSetConfig(Section):
    """Where tasks come from."""

    source: str
    """A `.jsonl` or `.parquet` file, `hf:ID` for a Hugging Face data set, or `reasoning-gym:NAME`."""
    subset: str | None = None
    """The configuration of a Hugging Face data set."""
    split: str = "train"
    """The split of a Hugging Face data set."""
    limit: PositiveInt | None = None
    """Use only the first rows; for `reasoning-gym`, how many tasks to make (it has no end)."""
    args: dict[str, Any] = {}
    """Arguments of a `reasoning-gym` generator."""
    order: Literal["sequential", "shuffled"] = "shuffled"
    """Shuffled draws another order in each epoch, from the run's seed."""
    format: FormatConfig = FormatConfig()


class DataConfig(Section):
    """Training tasks, and held-out ones."""

    train: TaskSetConfig
    evaluation: TaskSetConfig | None = None
    """Never trained on; scored before, during and after training."""


class RolloutConfig(Section):
    """How tasks are tried."""

    batch_groups: PositiveInt = 8
    """Tasks in a step; each is tried by one group."""
    group_size: PositiveInt = 8
    """Attempts at each task."""
    max_tokens: PositiveInt = 256
    """Most tokens of one answer."""
    temperature: NonNegativeFloat = 1.0
    """1 samples from the model's own distribution."""
    timeout_s: PositiveFloat = 120.0
    """The one deadline of an attempt, for everything that it does, scoring included."""
    max_failed_frac: float = Field(default=0.5, ge=0.0, le=1.0)
    """More failed attempts than this share of a step end the run."""
    short_batch: Literal["train_partial", "top_up", "skip", "wait"] | None = None
    """When operators and failures leave fewer groups than `batch_groups`: train what is left (what `sync` does if this is left out),
    lease more, skip, or wait for others (the one way in the other modes)."""
    max_refills: NonNegativeInt = 3
    """How often `top_up` leases more."""
    at_once: PositiveInt | None = None
    """Groups that one explorer tries at a time beside a trainer that goes on; `batch_groups` if left out. `sync` tries the whole batch."""
    scorers: PositiveInt = 2
    """Worker processes that run reward functions."""
    environment: ExtensionSpec = ExtensionSpec(name="single_turn")
    engine: ExtensionSpec = ExtensionSpec(name="hf")


class ExplorerConfig(Section):
    """Explorers of one kind."""

    count: PositiveInt = 1
    """How many processes."""
    rollout: dict[str, Any] = {}
    """What they do in another way than `rollout` says, by its keys: their engine, environment, temperature and the like."""


class TrainerConfig(Section):
    """How the policy is updated."""

    learning_rate: PositiveFloat = 1e-6
    """AdamW's, at its highest."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate moves after warm-up; linear and cosine end at 0 after `steps`."""
    warmup_steps: NonNegativeInt = 0
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's decay rates."""
    weight_decay: NonNegativeFloat = 0.0
    clip_norm: PositiveFloat = 1.0
    """Gradients are scaled down to this norm."""
    updates_per_batch: PositiveInt = 1
    """Passes over a batch. With one pass over one mini-batch of newest weights' samples, clipping of ratios never acts."""
    mini_batch_groups: PositiveInt | None = None
    """Groups in one optimizer update; the whole batch if left out."""
    micro_batch_tokens: PositiveInt = 4096
    """Tokens that pass the model at once; has no influence on the result."""
    packing: Literal["packed", "padded"] = "packed"
    """Packed: tokens that sequences have in common at their start pass the model once."""
    max_nonfinite_steps: PositiveInt = 3
    """Skipped updates in a row, for a loss or gradient that is not finite, after which the run fails."""


class SyncConfig(Section):
    """How new weights get to whoever generates."""

    method: Literal["checkpoint", "shared"] = "checkpoint"
    """`checkpoint` publishes a folder; `shared` lets engine and trainer of one process use one module."""
    interval: PositiveInt = 1
    """Steps between syncs."""
    keep: PositiveInt = 2
    """Published versions kept, besides the best and those in use."""
    max_staleness: NonNegativeInt | None = None
    """Most versions that a trained group may lie behind the one that a step starts from. If left out: `interval` - 1 in `sync`, where
    more of it lets `selection` replay; `interval` in `one_step`; 4 x `interval` in `async`."""


class CheckpointConfig(Section):
    """What a killed run goes on from."""

    every: PositiveInt = 10
    """Steps between full checkpoints; the last step always has one."""
    keep: PositiveInt = 2
    """Checkpoints kept."""


class SelectionConfig(ExtensionSpec):
    """Which of the stored groups a step trains on."""

    name: str = "oldest_first"
    where: str | None = None
    """A condition in DuckDB's SQL over the columns of `experiences`, as in `reward > 0`: only groups with a row that it holds for."""


class LabelsConfig(Section):
    """Rewards that come later, from people or models; see `rft label`.

    A group that gets them late is trained only while it lies no more than `sync.max_staleness` versions behind. A run does not wait for
    them: what has none when it ends is not used.
    """

    await_each: bool = False
    """True: a group waits for labels when one of its attempts has no reward. False: only when none has one."""
    deadline_s: PositiveFloat | None = None
    """Seconds after which a group stops waiting; it waits to the end of the run if left out."""
    then: Literal["drop", "train_rest"] = "drop"
    """What becomes of it then: it is dropped, or trained with the attempts that have a reward."""
    combine: Literal["newest", "mean"] = "newest"
    """What counts where labels of one experience differ: the last one, or the mean of each author's last one. The same for a whole run."""


class RetentionConfig(Section):
    """How much of the table is kept when it is compacted: the oldest rows go first, never those that are still to be trained."""

    max_age_days: PositiveFloat | None = None
    max_rows: PositiveInt | None = None
    max_bytes: PositiveInt | None = None


class TableConfig(Section):
    """Where the experience table lives."""

    catalog: str | None = None
    """A PostgreSQL database, as `postgresql://USER@HOST/DATABASE`, when several machines share a run; a SQLite file in the run's folder
    if left out. With a password in it: `env:NAME`, which is read where it is used, so that it is written down nowhere."""
    files: str | None = None
    """Where segments lie: `s3://BUCKET/PREFIX` or another object store, which needs `catalog`; the run's folder if left out."""
    options: dict[str, str] = {}
    """How to reach that store, as in `{endpoint_override: "http://minio:9000"}`; a value may be `env:NAME`, and one that may be a secret
    must be."""
    retention: RetentionConfig = RetentionConfig()


class EvaluationConfig(Section):
    """Scoring the policy on the held-out tasks, greedily."""

    every: PositiveInt | None = None
    """Steps between evaluations; before the first step and after the last one there always is one."""
    num_tasks: PositiveInt | None = None
    """Use only the first ones."""
    max_tokens: PositiveInt | None = None
    """Most tokens of one answer; `rollout.max_tokens` if left out."""
    environment: ExtensionSpec | None = None
    """`rollout.environment` if left out, or `single_turn` where that one replays experts."""


class MonitorConfig(Section):
    """What people review."""

    name: Literal["mlflow", "memory"] = "mlflow"
    """`memory` keeps figures in the process, for tests."""
    tracking_uri: str | None = None
    """An MLflow store; `MLFLOW_TRACKING_URI`, or a SQLite file in the runs folder, if left out. `env:NAME` is read from the
    environment where it is used, so that a secret in it is written down nowhere."""
    experiment: str = "tidemill"
    samples: NonNegativeInt = 4
    """Sampled rollouts shown as traces, after each checkpoint."""
    registered_model: str | None = None
    """Name under which the final weights are registered; the run's name if left out."""


class RunConfig(Section):
    """A complete run configuration; a recipe is one of these as YAML."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """The run's folder under `runs_dir`."""
    runs_dir: str = "runs"
    mode: Literal["sync", "one_step", "async"] = "sync"
    """`sync`: rollout and training take turns in one process. `one_step`: the next step's rollouts go on beside this step's training, in
    one process. `async`: explorers and trainer are processes of their own."""
    explorers: tuple[ExplorerConfig, ...] = (ExplorerConfig(),)
    """The explorers that `rft run` starts in mode `async`; more may join by `rft explore`."""
    seed: int = 0
    steps: PositiveInt
    """Trainer updates; the run ends earlier if `epochs` are over."""
    epochs: PositiveInt | None = None
    """Passes over the training tasks; no limit if left out."""
    model: ModelConfig
    data: DataConfig
    rollout: RolloutConfig = RolloutConfig()
    rewards: tuple[RewardSpec, ...] = ()
    operators: tuple[ExtensionSpec, ...] = ()
    """Filtering and shaping of experiences, in this order."""
    algorithm: ExtensionSpec = ExtensionSpec(name="grpo")
    selection: SelectionConfig = SelectionConfig()
    labels: LabelsConfig = LabelsConfig()
    table: TableConfig = TableConfig()
    trainer: TrainerConfig = TrainerConfig()
    sync: SyncConfig = SyncConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    monitor: MonitorConfig = MonitorConfig()
