"""A user's project gets ddprun: from find_package(ddprun) after `cmake --install`, and from
add_subdirectory().

The consumer in this folder is configured with every package switched off that must not be needed,
and with the library installed into a path with a blank.
Usage: cmake_package.py BUILD SOURCE [full]; BUILD is a build of ddprun that installs its runtime.
`full` also compiles a file with LibTorch. training_guide.py trains.
"""

import os
import re
import subprocess
import sys
import tempfile
import unittest

BUILD, SOURCE = map(os.path.abspath, sys.argv[1:3])
FULL = "full" in sys.argv[3:]
CONSUMER = os.path.join(SOURCE, "tests", "packaging", "consumer")
PROGRAM_LIBRARIES = ["Boost", "CLI11", "OpenSSL", "SQLite3", "spdlog"]
BUILD_LIBRARIES = ["fmt", "nlohmann_json"]
REAL_LIBTORCH = "2.13.0"


def run(*command, **options):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          check=False, **options)
    # CMake wraps its messages.
    return done.returncode, " ".join(done.stdout.split())


class Package(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder_owner = tempfile.TemporaryDirectory()
        cls.folder = cls.folder_owner.name
        cls.prefix = os.path.join(cls.folder, "a prefix")
        code, text = run("cmake", "--install", BUILD, "--component", "worker_runtime",
                         "--prefix", cls.prefix)
        assert code == 0, text
        cls.has_torch = os.path.exists(
            os.path.join(cls.prefix, "include/ddprun/worker_runtime/worker.hpp"))

    @classmethod
    def tearDownClass(cls):
        cls.folder_owner.cleanup()

    def configure(self, *options, without=(), **run_options):
        self.consumer = os.path.join(self.folder, self._testMethodName)
        return run("cmake", "-G", "Ninja", "-S", CONSUMER, "-B", self.consumer,
                   *(f"-DCMAKE_DISABLE_FIND_PACKAGE_{name}=ON" for name in without), *options,
                   **run_options)

    def configure_installed(self, *options, prefixes=(), **run_options):
        return self.configure("-DCMAKE_PREFIX_PATH=" + ";".join([self.prefix, *prefixes]),
                              *options, without=PROGRAM_LIBRARIES + BUILD_LIBRARIES, **run_options)

    def make(self, target):
        code, text = run("cmake", "--build", self.consumer, "--target", target)
        self.assertEqual(code, 0, text)

    def fake_libtorch(self, version):
        folder = os.path.join(self.folder, "libtorch " + version)
        header = os.path.join(folder, "include", "torch", "headeronly")
        os.makedirs(header)
        with open(os.path.join(header, "version.h"), "w", encoding="utf-8") as file:
            for name, number in zip(("MAJOR", "MINOR", "PATCH"), version.split(".")):
                file.write(f"#define TORCH_VERSION_{name} {number}\n")
        return folder

    def test_a_project_without_torch_finds_a_workers_place(self):
        code, text = self.configure_installed("-DCOMPONENTS=worker_env;checkpoint")
        self.assertEqual(code, 0, text)
        self.make("place")
        self.assertEqual(run(os.path.join(self.consumer, "place"), env={}), (0, "rank 0 of 1"))

    def test_headers_come_with_those_that_they_include(self):
        folder = os.path.join(self.prefix, "include", "ddprun")
        self.assertEqual(set(os.listdir(folder)), {"base", "worker_runtime"})
        missing = set()
        for where, _, names in os.walk(folder):
            for name in names:
                with open(os.path.join(where, name), encoding="utf-8") as file:
                    includes = re.findall(r'^#include "([^"]+)"', file.read(), re.MULTILINE)
                missing |= {f"{include}, included by {name}" for include in includes
                            if not os.path.exists(os.path.join(folder, include))}
        self.assertEqual(missing, set())

    def test_the_runtimes_headers_are_at_their_first_paths(self):
        if not self.has_torch:
            self.skipTest("built without LibTorch")
        with open(os.path.join(CONSUMER, "old_paths.cpp"), encoding="utf-8") as file:
            paths = re.findall(r'^#include "([^"]+)"', file.read(), re.MULTILINE)
        self.assertEqual(len(paths), 22)
        folder = os.path.join(self.prefix, "include", "ddprun")
        self.assertEqual([path for path in paths
                          if not os.path.exists(os.path.join(folder, path))], [])

    def test_a_component_that_does_not_exist_is_refused_in_words(self):
        code, text = self.configure_installed("-DCOMPONENTS=launcher")
        self.assertNotEqual(code, 0)
        self.assertIn("ddprun has no component launcher, only worker_runtime, worker_env and "
                      "checkpoint", text)

    def test_a_package_built_without_libtorch_says_so(self):
        if self.has_torch:
            self.skipTest("this one was built with LibTorch")
        code, text = self.configure_installed("-DCOMPONENTS=worker_runtime")
        self.assertNotEqual(code, 0)
        self.assertIn("was built without LibTorch", text)

    def test_another_torch_is_refused_in_words(self):
        if not self.has_torch:
            self.skipTest("built without LibTorch")
        folder = self.fake_libtorch("2.12.1")
        code, text = self.configure_installed(prefixes=[folder])
        self.assertNotEqual(code, 0)
        self.assertIn(f"was built against LibTorch {REAL_LIBTORCH}, and {folder} is 2.12.1", text)

    def test_no_torch_at_all_is_refused_in_words(self):
        if not self.has_torch:
            self.skipTest("built without LibTorch")
        nobody = os.path.join(self.folder, "nobody")
        os.makedirs(nobody)
        with open(os.path.join(nobody, "python3"), "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\nexit 1\n")
        os.chmod(os.path.join(nobody, "python3"), 0o755)
        environment = dict(os.environ, PATH=nobody + ":" + os.environ["PATH"])
        code, text = self.configure_installed(env=environment)
        self.assertNotEqual(code, 0)
        self.assertIn(f"needs LibTorch {REAL_LIBTORCH}, and there is none", text)

    def test_added_as_a_folder_it_builds_the_runtime_and_no_program(self):
        code, text = self.configure("-DEMBEDS=ON", "-DDDPRUN_SOURCE=" + SOURCE,
                                    "-DDDPRUN_WITH_TORCH=OFF", without=PROGRAM_LIBRARIES)
        self.assertEqual(code, 0, text)
        code, text = run("ninja", "-C", self.consumer, "-t", "targets", "all")
        self.assertEqual(code, 0, text)
        targets = {word.rpartition("/")[2].rstrip(":") for word in text.split()}
        self.assertIn("libddprun_worker_env.a", targets)
        self.assertIn("place", targets)
        self.assertEqual({"ddprun-rendezvous", "ddpctl", "ddprun-keeper", "libddprun_wire.a"}
                         & targets, set())

    def environment_with_libtorch(self):
        if not FULL or not self.has_torch:
            self.skipTest("compiles with LibTorch: scripts/test.sh --full, with torch")
        python = os.path.join(SOURCE, ".venv", "bin")
        return dict(os.environ, PATH=python + ":" + os.environ["PATH"])

    def test_a_program_with_the_first_paths_compiles(self):
        environment = self.environment_with_libtorch()
        code, text = self.configure_installed(env=environment)
        self.assertEqual(code, 0, text)
        self.make("old_paths")

    def test_so_it_does_where_ddprun_is_added_as_a_folder(self):
        environment = self.environment_with_libtorch()
        code, text = self.configure("-DEMBEDS=ON", "-DDDPRUN_SOURCE=" + SOURCE,
                                    without=PROGRAM_LIBRARIES, env=environment)
        self.assertEqual(code, 0, text)
        self.make("old_paths")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
