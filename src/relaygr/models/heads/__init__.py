"""What leaves a row: candidate rows to one logit a task."""
