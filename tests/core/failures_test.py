"""Ranks that die, leave, hang or disagree: every other rank must get an error that says so, and soon.

usage: failures_test.py FAILING_RANKS [unittest arguments]
"""

import os
import socket
import subprocess
import sys
import time
import unittest

PROGRAM = ""
RANKS = 3
LIMIT = 30  # seconds; the program's own timeout is 3


def free_port():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def start(scenario, backend):
    """Without the launcher, which would end the survivors."""
    job = {"WORLD_SIZE": RANKS, "LOCAL_WORLD_SIZE": RANKS, "MASTER_ADDR": "127.0.0.1",
           "MASTER_PORT": free_port(), "OMP_NUM_THREADS": 1}
    return [subprocess.Popen([PROGRAM, scenario, backend], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             text=True, env={**os.environ, **{key: str(value) for key, value in job.items()},
                                             "RANK": str(rank), "LOCAL_RANK": str(rank)})
            for rank in range(RANKS)]


def run(scenario, backend="shm"):
    """[(exit code, output)] by rank."""
    processes = start(scenario, backend)
    deadline = time.monotonic() + LIMIT
    try:
        results = []
        for process in processes:
            output, _ = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
            results.append((process.returncode, output))
        return results
    finally:
        for process in processes:
            process.kill()
            process.communicate()


class Failures(unittest.TestCase):
    def setUp(self):
        self.shared_memory = sorted(os.listdir("/dev/shm"))

    def tearDown(self):
        self.assertEqual(sorted(os.listdir("/dev/shm")), self.shared_memory)

    def expect(self, results, ranks, *texts):
        for rank in ranks:
            code, output = results[rank]
            self.assertEqual(code, 3, f"rank {rank}: {output}")
            for text in texts:
                self.assertIn(text, output, f"rank {rank}")

    def test_nothing_wrong(self):
        for backend in ("shm", "gloo"):
            self.assertEqual([code for code, _ in run("none", backend)], [0] * RANKS)

    def test_a_rank_dies(self):
        results = run("dies")
        self.expect(results, (0, 2), "group 'world'")
        self.assertIn("rank 1 died", results[0][1] + results[2][1])
        self.assertEqual(results[1][0], -9)

    def test_a_rank_dies_under_gloo(self):
        self.expect(run("dies", "gloo"), (0, 2), "group 'world'")

    def test_a_rank_leaves(self):
        results = run("leaves")
        self.expect(results, (0, 2), "group 'world'")
        self.assertRegex(results[0][1] + results[2][1], "rank 1 (died|has left)")

    def test_a_rank_hangs(self):
        results = run("stuck")
        self.expect(results, (0, 2), "rank 1 did not come within 3000 ms")
        self.expect(results, (1,), "while this rank waited")

    def test_a_rank_hangs_under_gloo(self):
        self.expect(run("stuck", "gloo"), (0, 2), "group 'world'")

    def test_different_collectives(self):
        results = run("other_collective")
        self.expect(results, range(RANKS), "group 'world'")
        self.assertRegex("".join(output for _, output in results), r"different collectives: .*all_gather.*all_reduce"
                                                                   r"|different collectives: .*all_reduce.*all_gather")

    def test_different_sizes(self):
        results = run("other_size")
        self.expect(results, range(RANKS), "group 'world'")
        self.assertIn("of 200 bytes", "".join(output for _, output in results))

    def test_shared_memory_is_full(self):
        self.expect(run("memory_full"), range(RANKS), "KiB of shared memory", "rank 0: reserving the memory: File too large",
                    "gloo backend")


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv[1])
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
