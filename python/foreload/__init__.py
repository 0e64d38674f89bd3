"""Training data, already there: feeds training from a bucket at local speed, in the exact shuffled order."""
