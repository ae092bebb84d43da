"""The trainer: batches of scored groups in, an updated policy, checkpoints and figures out."""
