import subprocess
import sys

import numpy as np
import pytest

from rft_core.algorithms import algorithms
from rft_core.errors import ConfigError


def test_built_from_arguments() -> None:
    algorithm = algorithms.build("grpo", {"delta": 1.0}, "algorithm")
    np.testing.assert_allclose(algorithm.advantages(np.array([1.0, 2.0, 3.0])), [-0.5, 0.0, 0.5])
    assert algorithm.needs.rollout and algorithm.needs.rewards and algorithm.needs.min_group_size == 2


@pytest.mark.parametrize(
    ("args", "key"),
    [
        ({"clip_low": 1.5}, "algorithm.args.clip_low"),
        ({"clip": 0.2}, "algorithm.args.clip"),
        ({"aggregation": "mean"}, "algorithm.args.aggregation"),
        ({"aggregation": "constant_length"}, "algorithm.args"),
        ({"length": 8}, "algorithm.args"),
    ],
)
def test_wrong_arguments_name_the_key(args: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        algorithms.configure("grpo", args, "algorithm")
    assert caught.value.key == key


def test_looking_algorithms_up_imports_no_torch() -> None:
    program = (
        "import sys; from rft_core.algorithms import algorithms; sys.exit(algorithms.names() != ['grpo', 'sft'] or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
