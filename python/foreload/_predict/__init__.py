"""What a run will take, before it is run: scenarios and plans, for `foreload.sim`, `foreload.cost` and `foreload.speeds`."""
