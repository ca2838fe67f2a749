"""Who calls whom in a census: the questions a policy asks of it.

Kept calls are not nested: inside a body whose calls are kept, XLA inlines. (XLA:CPU makes one
clone of a body for every chain of kept calls to it: 2,583 for a recursive fib(16).) So a policy
needs to know which calls lie outside kept bodies, and what would be left to share in a body if
its own calls were not kept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from .census import Body, Census


class CallGraph:
    """The call graph of the distinct bodies of a census."""

    def __init__(self, census: Census) -> None:
        self._bodies = {body.fingerprint.digest: body for body in census.bodies}
        # A census made by hand may leave out who calls whom: then the program calls them all.
        self._program_calls = dict(census.calls) or {
            body.fingerprint.digest: body.n_uses for body in census.bodies
        }

    def callers_first(self) -> Iterator[Body]:
        """The bodies in an order in which each follows all that call it."""
        # Without recursion: a census made by hand may be deeper than Python calls itself.
        finished: list[str] = []
        seen: set[str] = set()
        under_way = [("", iter(self._program_calls))]
        while under_way:
            caller, callees = under_way[-1]
            callee = next((digest for digest in callees if digest not in seen), None)
            if callee is None:
                under_way.pop()
                finished.append(caller)
            else:
                seen.add(callee)
                under_way.append((callee, iter(dict(self._bodies[callee].calls))))
        return (self._bodies[digest] for digest in reversed(finished[:-1]))

    def with_uses(self, kept: Collection[str]) -> Iterator[tuple[Body, int]]:
        """Bodies, callers first, and how many calls of each are not within ``kept`` bodies.

        Other bodies are spelled out: XLA copies them to each of their calls. A body may be added
        to ``kept`` when it has been yielded.
        """
        uses = dict.fromkeys(self._bodies, 0) | self._program_calls
        for body in self.callers_first():
            digest = body.fingerprint.digest
            yield body, uses[digest]
            if digest not in kept:
                for callee, n_calls in body.calls:
                    uses[callee] += n_calls * uses[digest]

    def uses_outside(self, kept: Collection[str]) -> Mapping[str, int]:
        """Calls of each body that are not within bodies named in ``kept``."""
        return dict.fromkeys(self._bodies, 0) | {
            body.fingerprint.digest: n_uses for body, n_uses in self.with_uses(kept)
        }

    def outermost_within(
        self, body: Body, wanted: Callable[[Body], bool]
    ) -> Iterator[tuple[Body, int]]:
        """Bodies for which ``wanted`` holds and how often one run of ``body`` calls them.

        What lies within them is left out.
        """
        waiting = [(body, 1)]
        while waiting:
            caller, n_runs = waiting.pop()
            for digest, n_calls in caller.calls:
                callee = self._bodies[digest]
                if wanted(callee):
                    yield callee, n_calls * n_runs
                else:
                    waiting.append((callee, n_calls * n_runs))
