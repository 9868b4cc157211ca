"""The Dockerfile makes an image by a real builder (buildah); two workers run in a container of it.

Its first stage, which compiles, is replaced by what it leaves: released programs and the C library,
as packaging/image_root.sh lays them out. Usage: image.py TARBALL, made by scripts/package.sh. Needs
root and buildah; nothing is fetched.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
IMAGE_MEGABYTES_MAX = 30
PROGRAMS = "/usr/libexec/ddprun/"


class Image(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder_owner = tempfile.TemporaryDirectory()
        cls.folder = cls.folder_owner.name
        first_stage = os.path.join(cls.folder, "first stage")
        context = os.path.join(cls.folder, "context")
        os.mkdir(context)
        subprocess.run([os.path.join(SOURCE, "packaging", "image_root.sh"), TARBALL,
                        os.path.join(first_stage, "image")], check=True)
        cls.buildah("bud", "--isolation", "chroot", "--build-context", "build=" + first_stage,
                    "--file", os.path.join(SOURCE, "packaging", "Dockerfile"), "--tag", "ddprun",
                    context)

    @classmethod
    def tearDownClass(cls):
        cls.folder_owner.cleanup()

    @classmethod
    def buildah(cls, *command):
        done = subprocess.run(
            ["buildah", "--storage-driver", "vfs", "--root", os.path.join(cls.folder, "root"),
             "--runroot", os.path.join(cls.folder, "runroot"), *command],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
            stdin=subprocess.DEVNULL)
        assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}"
        return done.stdout

    def test_it_starts_the_rendezvous(self):
        config = json.loads(self.buildah("inspect", "--type", "image", "localhost/ddprun"))
        config = config["OCIv1"]["config"]
        self.assertEqual(config["Entrypoint"], [PROGRAMS + "ddprun-rendezvous"])
        self.assertEqual(config["Cmd"], ["--help"])

    def test_it_is_small(self):
        size, unit = self.buildah("images", "--format", "{{.Size}}", "localhost/ddprun").split()
        print(f"image: {size} {unit}")
        self.assertEqual(unit, "MB")
        self.assertLessEqual(float(size), IMAGE_MEGABYTES_MAX)

    def test_two_workers_run_in_a_container(self):
        container = self.buildah("from", "localhost/ddprun").strip()
        text = self.buildah("run", "--isolation", "chroot", container, "--", "ddprun",
                            "--nproc-per-node", "2", "--prefix", "always", "--log-dir", "/tmp/logs",
                            PROGRAMS + "ddprun", "--version")
        for rank in range(2):
            self.assertIn(f" {rank}] ddprun ", text)


if __name__ == "__main__":
    TARBALL = os.path.abspath(sys.argv[1])
    if os.geteuid() != 0:
        print("LEFT OUT: a container needs root")
    elif not shutil.which("buildah"):
        print("LEFT OUT: the image: no buildah; scripts/setup.sh --full installs it")
    else:
        unittest.main(argv=sys.argv[:1])
