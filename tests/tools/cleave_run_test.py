"""What cleave-run promises: exit codes, names of signals, prefixes, and that nothing is left behind."""

import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

LAUNCHER = ""


def launch(*args, **kwargs):
    return subprocess.run([LAUNCHER, *args], capture_output=True, timeout=60, **kwargs)


def shell(ranks, script, *options, **kwargs):
    return launch("-n", str(ranks), *options, "sh", "-c", script, **kwargs)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(condition, seconds=10):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


class Environment(unittest.TestCase):
    def test_every_rank_has_its_place(self):
        run = shell(3, "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_ADDR")
        self.assertEqual(sorted(run.stdout.decode().splitlines()),
                         [f"[{r}] {r} {r} 3 3 127.0.0.1" for r in range(3)])

    def test_only_rank_0_gets_the_listening_socket(self):
        run = shell(2, 'test -n "$CLEAVE_MASTER_LISTEN_FD" && test -S /proc/self/fd/$CLEAVE_MASTER_LISTEN_FD '
                       '&& echo $RANK; ls -l /proc/self/fd | grep -c socket: || true', "--no-prefix")
        self.assertEqual(sorted(run.stdout.decode().split()), ["0", "0", "1"])

    def test_the_port_is_taken_from_the_start(self):
        # Rank 0 owns the listening socket, and must outlive the other's attempt.
        script = ('import os, socket, time; time.sleep(2) if os.environ["RANK"] == "0" else '
                  'socket.create_connection(("127.0.0.1", int(os.environ["MASTER_PORT"])), 5)')
        self.assertEqual(launch("-n", "2", sys.executable, "-c", script).returncode, 0)

    def test_two_jobs_have_two_ports(self):
        command = [LAUNCHER, "-n", "2", "--no-prefix", "sh", "-c", "echo $MASTER_PORT; sleep 0.5"]
        jobs = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
        ports = [set(job.communicate(timeout=30)[0].split()) for job in jobs]
        self.assertEqual([len(each) for each in ports], [1, 1])
        self.assertNotEqual(ports[0], ports[1])

    def test_threads(self):
        plain = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
        self.assertEqual(shell(1, "echo $OMP_NUM_THREADS", "--threads", "3", env=plain).stdout, b"3\n")
        kept = shell(1, "echo $OMP_NUM_THREADS", env=dict(plain, OMP_NUM_THREADS="5"))
        self.assertEqual(kept.stdout, b"5\n")
        cores = len(os.sched_getaffinity(0))
        self.assertEqual(shell(1, "echo $OMP_NUM_THREADS", env=plain).stdout, f"{cores}\n".encode())
        many = shell(64, "echo $OMP_NUM_THREADS", "--no-prefix", env=plain)
        self.assertEqual(set(many.stdout.split()), {str(max(1, cores // 64)).encode()})


class Output(unittest.TestCase):
    def test_one_rank_is_passed_through(self):
        self.assertEqual(shell(1, "printf 'a\\nb'").stdout, b"a\nb")

    def test_last_line_without_newline(self):
        self.assertEqual(shell(2, "test $RANK = 0 || printf half").stdout, b"[1] half\n")

    def test_progress_lines(self):
        run = shell(2, "test $RANK = 1 || printf '1%%\\r2%%\\r\\ndone\\n'")
        self.assertEqual(run.stdout, b"[0] 1%\r[0] 2%\r\n[0] done\n")

    def test_progress_arrives_before_the_end(self):
        job = subprocess.Popen([LAUNCHER, "-n", "2", "sh", "-c", "printf '1%%\\r'; sleep 30"], stdout=subprocess.PIPE)
        self.assertRegex(os.read(job.stdout.fileno(), 7), rb"\[[01]\] 1%\r")
        job.terminate()
        job.communicate(timeout=10)

    def test_streams_stay_apart(self):
        run = shell(2, "test $RANK = 0 || { echo out; echo err >&2; }")
        self.assertEqual((run.stdout, run.stderr), (b"[1] out\n", b"[1] err\n"))

    def test_much_output_arrives_whole(self):
        run = shell(4, "seq 1 20000")
        lines = run.stdout.decode().splitlines()
        for rank in range(4):
            mine = [line[4:] for line in lines if line.startswith(f"[{rank}] ")]
            self.assertEqual(mine, [str(n) for n in range(1, 20001)])

    def test_a_reader_that_leaves_does_not_stop_the_job(self):
        script = f"{LAUNCHER} -n 2 sh -c 'seq 1 50000' | head -1 >/dev/null; echo ${{PIPESTATUS[0]}}"
        run = subprocess.run(["bash", "-c", script], capture_output=True, timeout=60)
        self.assertEqual(run.stdout, b"0\n")


class Failure(unittest.TestCase):
    def test_success(self):
        self.assertEqual(shell(3, "exit 0").returncode, 0)

    def test_exit_code_and_rank(self):
        start = time.monotonic()
        run = shell(3, "test $RANK != 1 || exit 7; exec sleep 60")
        self.assertEqual(run.returncode, 7)
        self.assertEqual(run.stderr.decode().splitlines(),
                         ["cleave-run: rank 1 exited with code 7; ending the other ranks"])
        self.assertLess(time.monotonic() - start, 2.5)

    def test_signal_is_named(self):
        run = shell(2, "test $RANK != 1 || kill -SEGV $$; exec sleep 60")
        self.assertEqual(run.returncode, 128 + signal.SIGSEGV)
        self.assertIn(b"rank 1 was killed by SIGSEGV", run.stderr)

    def test_a_deaf_rank_is_killed_after_the_grace(self):
        start = time.monotonic()
        run = shell(2, "trap '' TERM; test $RANK != 1 || exit 4; while :; do sleep 0.1; done")
        self.assertEqual(run.returncode, 4)
        self.assertGreater(time.monotonic() - start, 2.5)
        self.assertLess(time.monotonic() - start, 8)

    def test_missing_program_once(self):
        run = launch("-n", "4", "./no-such-program")
        self.assertEqual(run.returncode, 127)
        self.assertEqual(run.stderr, b"cleave-run: cannot run './no-such-program': No such file or directory\n")

    def test_program_that_is_not_one(self):
        run = launch("-n", "2", "/etc/passwd")
        self.assertEqual(run.returncode, 126)
        self.assertIn(b"Permission denied", run.stderr)

    def test_wrong_use(self):
        for args in ([], ["-n"], ["-n", "0", "true"], ["-n", "2x", "true"], ["--what", "true"], ["-n", "2"]):
            run = launch(*args)
            self.assertEqual(run.returncode, 2, args)
            self.assertIn(b"--help", run.stderr)
        self.assertIn(b"usage", launch("--help").stdout)


class Signals(unittest.TestCase):
    """Each rank starts a child; `pids` are all processes that must be gone at the end."""

    def start(self, script):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        job = subprocess.Popen([LAUNCHER, "-n", "2", "sh", "-c", script], cwd=self.folder.name,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        self.assertTrue(wait_until(lambda: len(self.pids()) == 4))
        return job

    def pids(self):
        found = []
        for name in os.listdir(self.folder.name):
            if name.startswith("pid."):
                found.append(int(name[4:]))
        return found

    def all_gone(self):
        return wait_until(lambda: not any(alive(pid) for pid in self.pids()))

    TREE = "sleep 100 & : > pid.$!; : > pid.$$; wait"
    # The child leaves its rank's process group.
    DAEMON = "setsid sleep 100 & : > pid.$!; : > pid.$$; wait"

    def check(self, script, number, code):
        job = self.start(script)
        job.send_signal(number)
        self.assertEqual(job.wait(timeout=15), code)
        self.assertTrue(self.all_gone())

    def test_interrupt(self):
        self.check(self.TREE, signal.SIGINT, 130)

    def test_terminate(self):
        self.check(self.TREE, signal.SIGTERM, 143)

    def test_daemons_are_ended_too(self):
        self.check(self.DAEMON, signal.SIGTERM, 143)

    def test_second_interrupt_does_not_wait(self):
        job = self.start("trap '' INT; " + self.TREE)
        job.send_signal(signal.SIGINT)
        time.sleep(0.3)
        start = time.monotonic()
        job.send_signal(signal.SIGINT)
        self.assertEqual(job.wait(timeout=15), 130)
        self.assertLess(time.monotonic() - start, 1.5)
        self.assertTrue(self.all_gone())

    def test_killed_launcher_leaves_nothing(self):
        job = self.start(self.TREE)
        job.kill()
        job.wait(timeout=5)
        self.assertTrue(self.all_gone())

    def test_children_of_ranks_that_end_well(self):
        job = self.start("sleep 100 & : > pid.$!; : > pid.$$; sleep 0.5; exit 0")
        self.assertEqual(job.wait(timeout=15), 0)
        self.assertTrue(self.all_gone())


if __name__ == "__main__":
    LAUNCHER = os.path.abspath(sys.argv.pop(1))
    unittest.main()
