"""One file an estimator: `advantages(tokens, **settings)` of a step's batch, [R] float64."""
