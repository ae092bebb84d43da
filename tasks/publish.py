"""Publishing the trainer's weights as they are now."""

from pathlib import Path
from tempfile import TemporaryDirectory

from rft_core.disk import no_space
from tasks.session import Session


def publish_files(session: Session, version: int) -> None:
    """Publish the trainer's weights as the files of a version, which they are.

    Raises:
        UserError: There is no space for them.
    """
    weights = session.run_dir.weights
    try:
        weights.mkdir(exist_ok=True)
        with TemporaryDirectory(dir=weights, prefix=".saving.tmp-") as folder:
            session.policy.save(Path(folder), session.base_folder)
            session.weights.publish(version, version, Path(folder))
    except OSError as error:
        raise no_space(error, weights) from None
