"""What enters a row: one class for each way of turning slots, events and candidates into tokens."""
