"""The folder of a run: claim, checkpoint, weights, record and history."""
