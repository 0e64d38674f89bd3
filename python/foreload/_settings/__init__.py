"""What a user gives: budgets, tuning, orders, sizes, numbers, variables, files of text. Read, checked and defaulted here, once."""
