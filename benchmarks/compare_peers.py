"""Times of this library and of its PyTorch peers, in turn on the same machine.

compare_peers.py --peers FOLDER --python BIN --build FOLDER [--repeats 3] [--what steps|ops]

--peers: a folder with bench_fsdp2.py, bench_ddp.py and bench_dtensor_ops.py.
steps: training steps of the gpt example; prints, per preset, the fastest step of each over all repeats, and
its share of each peer's time (below 1: faster than that peer).
ops: what an op on a small DTensor costs more than on a plain tensor, here and in Python; in microseconds.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=pathlib.Path, required=True)
    parser.add_argument("--what", choices=["steps", "ops"], default="steps")
    parser.add_argument("--python", default=sys.executable, help="an interpreter with torch")
    parser.add_argument("--build", type=pathlib.Path, required=True, help="the build folder, with bin/")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--presets", default="tiny,base")
    parser.add_argument("--strategies", default="FULL_SHARD,SHARD_GRAD_OP,SHARD_OPTIMIZER,NO_SHARD,HYBRID_SHARD")
    return parser.parse_args()


def torchrun_of(args, script, *flags):
    return [args.python, "-m", "torch.distributed.run", "--rdzv-backend", "c10d", "--rdzv-endpoint",
            "localhost:0", "--nproc-per-node", args.ranks, args.peers.resolve() / script, *flags]


def commands(args, preset, out):
    """{name: command}; each appends a line of JSON to its own file under `out`."""
    def gpt(strategy):
        binaries = args.build.resolve() / "bin"
        return [binaries / "cleave-run", "-n", args.ranks, binaries / "gpt", "--synthetic",
                f"--preset={preset}", f"--strategy={strategy}", f"--steps={args.steps}"]

    def torchrun(script, *flags):
        return torchrun_of(args, script, *flags, "--preset", preset, "--steps", args.steps, "--profile-steps", 0)

    named = {
        "FSDP2": torchrun("bench_fsdp2.py", "--reshard", 1),
        "DDP": torchrun("bench_ddp.py", "--strategy", "ddp"),
        **{f"cleave {strategy}": gpt(strategy) for strategy in args.strategies.split(",")},
    }
    return {name: [*map(str, command), "--json" if "cleave" in name else "--out",
                   str(out / f"{name}.jsonl")] for name, command in named.items()}


def run(name, command):
    done = subprocess.run(command, env=dict(os.environ, OMP_NUM_THREADS="1"), capture_output=True,
                          text=True, timeout=600)
    if done.returncode != 0:
        sys.exit(f"{name}: exit code {done.returncode}\n{' '.join(command)}\n{done.stdout}{done.stderr}")


def compare(args, preset):
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder)
        named = commands(args, preset, out)
        for _ in range(args.repeats):
            for name, command in named.items():
                run(name, command)
        records = {name: [json.loads(line) for line in open(out / f"{name}.jsonl")] for name in named}
    fastest = {name: min(record["step_ms"]["min"] for record in each) for name, each in records.items()}
    print(f"{preset}, {args.ranks} ranks, fastest step of {args.repeats} runs")
    print(f"  {'':<22} {'ms':>8} {'/ FSDP2':>8} {'/ DDP':>8} {'peak MiB':>9}  last loss")
    for name, milliseconds in fastest.items():
        memory = max(max(record["peak_rss_mib"]) for record in records[name])
        ratios = [milliseconds / fastest[peer] for peer in ("FSDP2", "DDP")]
        print(f"  {name:<22} {milliseconds:8.1f} {ratios[0]:8.2f} {ratios[1]:8.2f} {memory:9.0f}  "
              f"{records[name][-1]['losses'][-1]:.9f}")
    sys.stdout.flush()


OPS = {"Add": "add shard0", "Mul": "mul shard0", "MulNumber": "mul scalar shard0", "Relu": "relu shard0",
       "Transpose": "t shard0", "View": "view shard0", "Detach": "detach shard0", "AddInPlace": "add_ shard0",
       "Mm": "mm replicate x shard1", "LinearForwardBackward": "linear forward+backward colwise",
       "RedistributeToItself": "redistribute no-op", "AddNewShape": "add new_shape",
       "MmNewShape": "mm new_shape", "SoftmaxNewShape": "softmax new_shape", "ViewNewShape": "view new_shape"}


def compare_ops(args):
    ours, theirs = {}, {}
    for _ in range(args.repeats):
        with tempfile.TemporaryDirectory() as folder:
            json_file, lines = pathlib.Path(folder) / "cleave.json", pathlib.Path(folder) / "peer.jsonl"
            binaries = args.build.resolve() / "bin"
            run("cleave", [*map(str, [binaries / "cleave-run", "-n", args.ranks, binaries / "dtensor_ops_bench"]),
                           f"--benchmark_out={json_file}"])
            run("DTensor", [*map(str, torchrun_of(args, "bench_dtensor_ops.py")), "--out", str(lines)])
            for each in json.load(open(json_file))["benchmarks"]:
                ours.setdefault(each["name"].split("/")[0], []).append(each["added_ns"] / 1000)
            for record in map(json.loads, open(lines)):
                plain = record["plain_us"]["min"] if record["plain_us"] else 0.0
                theirs.setdefault(record["case"], []).append(record["dtensor_us"]["min"] - plain)
    print(f"added per op, us, {args.ranks} ranks, best of {args.repeats} runs")
    print(f"  {'':<24} {'cleave':>8} {'DTensor':>9}")
    for name, case in OPS.items():
        print(f"  {name:<24} {min(ours[name]):8.2f} {min(theirs[case]):9.2f}")


if __name__ == "__main__":
    parsed = arguments()
    if parsed.what == "ops":
        compare_ops(parsed)
    else:
        for each in parsed.presets.split(","):
            compare(parsed, each)
