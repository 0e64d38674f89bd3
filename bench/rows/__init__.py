"""The figures' measurements, by what they are about; each function takes a `Stage` and answers with a `Result`."""
