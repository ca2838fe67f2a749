"""`outermost_jit`: `jax.jit` over a function that structures its program when JAX traces it."""
