"""Two processes under `jax.distributed` run one sharded train step, and agree with one process.

Run as a script, this file is one of the two processes.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from helpers import python_environment, share_all_policy
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import jitscope

N_LAYERS, N_STEPS = 6, 3
BATCH, WIDTH = 16, 8


def train(n_data: int, n_model: int) -> dict[str, Any]:
    """Losses and parameter sums of a few sharded train steps on all devices of the job."""
    mesh = jax.make_mesh((n_data, n_model), ("data", "model"), axis_types=(AxisType.Auto,) * 2)

    def place(seed: int, shape: tuple[int, ...], spec: P) -> jax.Array:
        whole = np.random.default_rng(seed).standard_normal(shape).astype(np.float32) * 0.3
        return jax.make_array_from_callback(shape, NamedSharding(mesh, spec), lambda i: whole[i])

    @jitscope.shared_subroutine
    def block(p, x):
        return x + jnp.tanh(x @ p["up"]) @ p["down"]

    @jitscope.outermost_jit(policy=share_all_policy(), donate_argnums=0)
    def train_step(params, x, target):
        def loss(params):
            y = x
            for p in params:
                y = block(p, y)
            return jnp.mean((y - target) ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    params = [
        {
            "up": place(2 * i, (WIDTH, 2 * WIDTH), P(None, "model")),
            "down": place(2 * i + 1, (2 * WIDTH, WIDTH), P("model", None)),
        }
        for i in range(N_LAYERS)
    ]
    x, target = (place(s, (BATCH, WIDTH), P("data")) for s in (100, 101))
    stablehlo = train_step.lower(params, x, target).as_text()
    losses = []
    for _ in range(N_STEPS):
        params, loss = train_step(params, x, target)
        losses.append(float(loss))
    total = jax.jit(
        lambda tree: sum(jnp.abs(leaf).sum() for leaf in jax.tree.leaves(tree)),
        out_shardings=NamedSharding(mesh, P()),
    )
    return {
        "losses": losses,
        "parameters": float(total(params)),
        "stablehlo": stablehlo,
        "n_processes": jax.process_count(),
        "n_devices": jax.device_count(),
    }


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run_two_processes() -> list[dict[str, Any]]:
    """Start both processes on this machine, and read what each found."""
    environment = python_environment(n_devices=4)
    port = str(free_port())
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, port, str(rank)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [p.communicate(timeout=150) for p in processes]
    finally:
        for p in processes:
            p.kill()
    for p, (_, errors) in zip(processes, outputs, strict=True):
        assert p.returncode == 0, errors[-4000:]
    return [json.loads(out.splitlines()[-1]) for out, _ in outputs]


def test_two_processes_run_one_sharded_train_step():
    first, second = run_two_processes()
    assert (first["n_processes"], first["n_devices"]) == (2, 8)
    # Every host must compile the same module.
    assert first == second
    alone = train(4, 2)
    assert alone["n_processes"] == 1
    np.testing.assert_allclose(first["losses"], alone["losses"], rtol=1e-5)
    np.testing.assert_allclose(first["parameters"], alone["parameters"], rtol=1e-5)
    assert first["losses"][-1] < first["losses"][0]


def main(port: str, rank: str) -> None:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=int(rank))
    print(json.dumps(train(4, 2)))
    jax.distributed.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
