"""tools/check_layers.py accepts this tree and refuses includes against the layers."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).parents[2]


def check(root):
    run = subprocess.run([sys.executable, ROOT / "tools/check_layers.py", root], capture_output=True, text=True)
    return run.returncode, run.stdout


class CheckLayers(unittest.TestCase):
    def check_file(self, path, include):
        with tempfile.TemporaryDirectory() as root:
            file = pathlib.Path(root, path)
            file.parent.mkdir(parents=True)
            file.write_text(f"// x\n#include {include}\n")
            return check(root)

    def test_this_tree(self):
        self.assertEqual(check(ROOT), (0, "layers: ok\n"))

    def test_against_the_layers(self):
        for path, include in [("core/a.h", '"strategies/b.h"'), ("core/x/a.cc", "<cleave/compat/b.h>"),
                              ("strategies/a.cc", '"tensor_parallel/b.h"'),
                              ("tensor_parallel/a.cc", '"strategies/b.h"'), ("compat/a.cc", '"examples/b.h"')]:
            code, text = self.check_file(path, include)
            self.assertEqual(code, 1, path)
            self.assertIn(f"{path}:2:", text)

    def test_with_the_layers(self):
        for path, include in [("strategies/a.cc", '"core/b.h"'), ("examples/gpt/a.cc", "<cleave/compat/b.h>"),
                              ("core/a.cc", "<torch/torch.h>"), ("strategies/optim/a.h", '"strategies/b.h"')]:
            self.assertEqual(self.check_file(path, include)[0], 0, path)


if __name__ == "__main__":
    unittest.main()
