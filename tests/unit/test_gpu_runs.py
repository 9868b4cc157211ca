"""scripts/gpu_runs.py keeps what a run has shown, and what it left out, and refuses the rest."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, os.path.join(ROOT, "scripts"))
import gpu_runs  # noqa: E402

SAID = '''gpu: 1 x NVIDIA H100 80GB HBM3, LibTorch 2.14.1, NCCL 2.30.7, CUDA 13.0
test_a (__main__.RuntimeOnGpu.test_a) ... ok
test_b (__main__.RuntimeOnGpu.test_b)
Its docstring. ... skipped 'needs 2 GPUs, 1 there'
test_c (__main__.RuntimeOnGpu.test_c) ... gpu: LEFT OUT: rates: no Python
ok
'''
REPORT = f'''<testsuite>
<testcase name="runtime_on_gpu" status="run"><system-out>{SAID}</system-out></testcase>
<testcase name="losses_on_gpu" status="notrun"><skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/>
<system-out>LEFT OUT: all tests on GPUs: they need 2
</system-out></testcase>
</testsuite>
'''
RUN = {"gpus": "1", "device": "NVIDIA H100 80GB HBM3", "libtorch": "2.14.1", "nccl": "2.30.7",
       "cuda": "13.0", "date": "2026-01-02", "passed": ["runtime_on_gpu"], "left_out": [
           "runtime_on_gpu: test_b: needs 2 GPUs, 1 there", "runtime_on_gpu: rates: no Python",
           "losses_on_gpu: all tests on GPUs: they need 2"]}
SETUP = '''
oldest_torch_wheels=(
    torch==2.11.0 00
    nvidia-nccl-cu13==2.28.9 00
)
python_packages=(
    torch==2.13.0 numpy
)
cuda_header_wheels=(
    nvidia-nccl-cu13==2.29.7 00
)
fake_gpu_torch_wheels=(
    torch==2.14.1 00
)
fake_gpu_header_wheels=(
    "${cuda_header_wheels[@]:0:6}"
    nvidia-nccl-cu13==2.30.7 00
)
newest_torch_wheels=(
    torch==2.15.0 00
    nvidia-nccl-cu13==2.30.7 00
)
'''
PAGE = "# Page\n<!-- runs on GPUs -->\nold\n<!-- end of runs on GPUs -->\nrest\n"


class Record(unittest.TestCase):
    def run_of(self, report):
        with tempfile.NamedTemporaryFile("w", suffix=".xml") as file:
            file.write(report)
            file.flush()
            return gpu_runs.run_of(file.name, "2026-01-02")

    def test_a_run_is_what_its_report_says(self):
        self.assertEqual(self.run_of(REPORT), RUN)

    def test_no_other_run_is_kept(self):
        for report, error in ((REPORT.replace('"run"', '"fail"'), "1 failed"),
                              (REPORT.replace('"run"', '"disabled"'), "0 tests passed"),
                              (REPORT.replace("gpu: 1 x", "gpu:"), "what it ran on")):
            with self.subTest(error), self.assertRaisesRegex(gpu_runs.Unreadable, error):
                self.run_of(report)


class Block(unittest.TestCase):
    def test_nothing_has_run(self):
        text = gpu_runs.document([], SETUP, PAGE)
        self.assertIn("\nHas run on GPUs: nothing yet.\n\nHas run on the fake GPU: nothing yet.\n"
                      "<!-- end of runs on GPUs -->\nrest\n", text)
        self.assertIn("| 2.11.0 | 2.28.9 | `scripts/test.sh --full` | no | no | no |\n"
                      "| 2.13.0 | 2.29.7 | `scripts/test.sh` | `scripts/test.sh` | no | no |\n"
                      "| 2.14.1 | 2.30.7 | `scripts/test.sh --fake-gpu` | no | no | no |\n", text)

    def test_runs_are_listed_and_are_in_the_table(self):
        run = {**RUN, "commit": "0a1b2c", "kills": 4}
        fake = {**run, "device": "Fake GPU", "left_out": []}
        text = gpu_runs.document([fake, run, {**run, "libtorch": "2.12.1"}], SETUP, PAGE)
        self.assertRegex(text, r"\| 2\.12\.1 \| 2\.30\.7 \| .*--gpu.* \| no \| no \| NVIDIA H100.* "
                               r"\|\n\| 2\.13\.0 ")
        self.assertRegex(text, r"\| 2\.14\.1 .* \| 2026-01-02 \| NVIDIA H100 80GB HBM3, 2026-01-02 "
                               r"\|\n\| 2\.15")
        self.assertIn("Has run on GPUs:\n\n* 1 x NVIDIA H100 80GB HBM3, LibTorch 2.14.1, NCCL "
                      "2.30.7, CUDA 13.0, 2026-01-02, commit 0a1b2c, 4 kills at each place: "
                      "`runtime_on_gpu`. Left out: runtime_on_gpu: "
                      "test_b: needs 2 GPUs, 1 there; ", text)
        self.assertIn("Has run on the fake GPU:\n\n* 1 x Fake GPU, LibTorch 2.14.1, NCCL 2.30.7, "
                      "CUDA 13.0, 2026-01-02, commit 0a1b2c, 4 kills at each place: "
                      "`runtime_on_gpu`. Left out: nothing.\n", text)

    def test_a_pin_that_is_missing_and_a_page_without_a_block_are_refused(self):
        for setup, page, error in ((SETUP.replace("torch==2.15", "x==2.15"), PAGE, "newest_torch"),
                                   (SETUP, "# Page\n", "0 blocks")):
            with self.subTest(error), self.assertRaisesRegex(gpu_runs.Unreadable, error):
                gpu_runs.document([], setup, page)


class Tree(unittest.TestCase):
    """A tree of files with what the script needs."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = folder.name
        self.environment = {key: value for key, value in os.environ.items()
                            if key != "DDPRUN_GPU_KILLS" and not key.startswith("GIT_")}
        for folder in ("scripts", "docs", "tests/gpu"):
            os.makedirs(os.path.join(self.root, folder))
        for script in ("gpu_runs.py", "made_files.py", "count_tests.py"):
            shutil.copy(os.path.join(ROOT, "scripts", script), os.path.join(self.root, "scripts"))
        self.other = {**RUN, "device": "Fake GPU", "commit": "0a1b2c", "kills": 100}
        earlier = {**RUN, "commit": "3d4e5f", "kills": 7}
        for path, text in ((gpu_runs.RUNS, json.dumps([earlier, self.other])),
                           (gpu_runs.PINS, SETUP), (gpu_runs.DOCUMENT, PAGE),
                           ("report.xml", REPORT)):
            self.write(path, text)

    def write(self, path, text):
        with open(os.path.join(self.root, path), "w", encoding="utf-8") as file:
            file.write(text)

    def run_script(self, *arguments):
        return subprocess.run([sys.executable, "-B", "scripts/gpu_runs.py", *arguments],
                              cwd=self.root, capture_output=True, text=True, check=False,
                              env=self.environment)

    def runs(self):
        with open(os.path.join(self.root, gpu_runs.RUNS), encoding="utf-8") as file:
            return json.load(file)

    def git(self, *arguments):
        return subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments],
                              cwd=self.root, capture_output=True, text=True, check=True,
                              env=self.environment).stdout.strip()

    def recorded_commit(self):
        self.assertEqual(self.run_script("--record", "report.xml").returncode, 0)
        return self.runs()[-1]["commit"]

    def test_a_new_run_replaces_the_one_of_its_gpu_and_libtorch(self):
        self.assertEqual(self.run_script("--check").returncode, 1)
        self.assertEqual(self.recorded_commit(), "unknown")
        self.assertEqual(self.run_script("--check").returncode, 0)
        kept = self.runs()
        self.assertEqual(kept, [self.other, {**RUN, "date": kept[1]["date"], "commit": "unknown",
                                             "kills": 4}])
        self.write("report.xml", REPORT.replace('"run"', '"fail"'))
        self.assertIn("nothing is recorded", self.run_script("--record", "report.xml").stderr)
        self.assertEqual(self.runs(), kept)
        self.assertEqual(self.run_script("--wrong").returncode, 2)

    def test_a_run_of_a_changed_tree_says_so(self):
        self.git("init", "--quiet")
        self.git("add", "scripts", "docs", "tests")
        self.git("commit", "--quiet", "--message", "all")
        commit = self.git("rev-parse", "HEAD")[:10]
        # A record's own files are no change of the tested tree, nor is a file that git lacks.
        for _ in range(2):
            self.assertEqual(self.recorded_commit(), commit)
        self.write(gpu_runs.PINS, SETUP + "\n")
        self.assertEqual(self.recorded_commit(), f"{commit} with changes")
        self.git("add", gpu_runs.PINS)
        self.assertEqual(self.recorded_commit(), f"{commit} with changes")


if __name__ == "__main__":
    unittest.main()
