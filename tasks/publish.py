"""Publishing the trainer's weights as they are now."""

from rft_core.disk import no_space, temporary_folder
from tasks.session import Session


def publish_files(session: Session, version: int) -> None:
    """Publish the trainer's weights as the files of a version, which they are.

    Raises:
        UserError: There is no space for them.
    """
    weights = session.run_dir.weights
    try:
        with temporary_folder(weights / "saving") as folder:
            session.policy.save(folder, session.base_folder)
            session.weights.publish(version, version, folder)
    except OSError as error:
        raise no_space(error, weights) from None
