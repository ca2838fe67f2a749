"""A message-passing network's train step: gather along edges, a perceptron, sum at the nodes.

Every layer has weights of its own. The loss is that of regressing a value for each node.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.programs.layers import (
    Runner,
    Weights,
    in_a_row,
    in_a_scan,
    layer_norm,
    stack,
    unstack,
)
from benchmarks.programs.program import Case, Fun, Program, Share

Params = dict[str, jax.Array]
Graph = tuple[jax.Array, jax.Array, jax.Array, jax.Array]
"""Nodes' and edges' features, and the numbers of each edge's sender and receiver."""


def _layer(params: Params, graph: Graph) -> Graph:
    nodes, edges, senders, receivers = graph
    inputs = jnp.concatenate([nodes[senders], nodes[receivers], edges], -1)
    hidden = jax.nn.silu(layer_norm(inputs) @ params["edge_in"] + params["edge_bias"])
    edges = edges + hidden @ params["edge_out"]
    messages = jax.ops.segment_sum(edges, receivers, nodes.shape[0])
    inputs = layer_norm(jnp.concatenate([nodes, messages], -1))
    hidden = jax.nn.silu(inputs @ params["node_in"] + params["node_bias"])
    return nodes + hidden @ params["node_out"], edges, senders, receivers


def _train_step(run: Runner) -> Fun:
    def loss(layers: Any, nodes: Any, edges: Any, ends: Any, targets: Any) -> jax.Array:
        nodes, *_ = run(layers, (nodes, edges, *ends))
        return ((layer_norm(nodes).mean(-1) - targets) ** 2).mean()

    return jax.value_and_grad(loss)


def _arguments(layers: int, width: int, nodes: int, edges: int) -> tuple[Any, ...]:
    weights = Weights()
    params = [
        {
            "edge_in": weights.matrix(3 * width, width),
            "edge_bias": jnp.zeros(width),
            "edge_out": weights.matrix(width, width, gain=0.5),
            "node_in": weights.matrix(2 * width, width),
            "node_bias": jnp.zeros(width),
            "node_out": weights.matrix(width, width, gain=0.5),
        }
        for _ in range(layers)
    ]
    ends = weights.integers(nodes, edges), weights.integers(nodes, edges)
    features = weights.normal(nodes, width), weights.normal(edges, width)
    return params, *features, ends, weights.normal(nodes)


def make(share: Share, **settings: int) -> Case:
    """The train step with its layers in a Python loop."""
    return Case(_train_step(in_a_row(share(_layer))), _arguments(**settings))


def make_scan(**settings: int) -> Case:
    """The train step with its layers in a scan."""
    params, *rest = _arguments(**settings)

    def finish(result: Any) -> Any:
        return result[0], unstack(result[1])

    return Case(_train_step(in_a_scan(_layer)), (stack(params), *rest), finish)


PROGRAM = Program(
    "message_passing",
    full={"layers": 24, "width": 64, "nodes": 256, "edges": 1024},
    tiny={"layers": 4, "width": 8, "nodes": 8, "edges": 16},
    make=make,
    make_scan=make_scan,
)
