"""How a checkpoint is put in place, and what is found when that was cut short. Needs torch."""

import contextlib
import errno
import importlib.util
import io
import os
import pathlib
import shutil
import stat
import tempfile
import unittest
from unittest import mock

from test_worker import AgentPage, worker_of

ONE_RANK = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
            "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1", "DDPRUN_SLOT": "0"}


class Placing(unittest.TestCase):
    """A checkpoint here is a folder with one file; its text shows whether it is old or new."""

    def setUp(self):
        if importlib.util.find_spec("torch") is None:
            print("LEFT OUT: no torch here, run scripts/setup.sh")
            self.skipTest("torch is missing")
        from ddprun import _checkpoints

        self.checkpoints = _checkpoints
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = os.path.join(folder.name, "a", "b")
        self.path = _checkpoints.step_path(self.folder, 4)
        self.worker, _ = worker_of(AgentPage(version=8, slots=1), **ONE_RANK)

    def write(self, path, text="new"):
        os.makedirs(path)
        with open(os.path.join(path, "state"), "w") as file:
            file.write(text)

    def text(self, path):
        with open(os.path.join(path, "state")) as file:
            return file.read()

    def save(self):
        """Returns the output on stderr."""
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            self.assertTrue(self.checkpoints.save(self.worker, self.path, self.write))
        return said.getvalue()

    def names(self):
        return sorted(os.listdir(self.folder))

    def found(self):
        return sorted(os.path.relpath(path, self.folder)
                      for path in self.checkpoints.paths_under(self.folder))

    def test_beside_the_new_one_the_replaced_one_is_not_found(self):
        self.write(self.path)
        self.write(self.path + ".replaced", "half removed")
        self.assertEqual(self.found(), ["ddprun-step=4", "ddprun-step=4/state"])
        shutil.rmtree(self.path)
        self.assertEqual(self.found(), ["ddprun-step=4.replaced", "ddprun-step=4.replaced/state"])

    def test_a_replaced_one_is_removed_under_a_name_that_is_not_found(self):
        self.write(self.path, "old")
        removed, remove = [], shutil.rmtree

        def told_remove(path):
            removed.append(os.path.basename(path))
            remove(path)

        with mock.patch.object(self.checkpoints.shutil, "rmtree", told_remove):
            self.save()
        self.assertEqual(removed, ["ddprun-step=4.replaced.partial"])

    def test_a_replaced_one_that_cannot_be_removed_is_one_line(self):
        self.write(self.path, "old")
        with mock.patch.object(self.checkpoints.shutil, "rmtree",
                               side_effect=OSError(errno.EBUSY, "busy")):
            said = self.save()
        self.assertRegex(said, r"^ddprun: rank 0: \S+step=4.replaced cannot be removed: busy;.*\n$")
        self.assertEqual(self.text(self.path), "new")
        self.assertEqual(self.names(), ["ddprun-step=4", "ddprun-step=4.replaced.partial"])
        # The next save tries again.
        self.assertEqual(self.save(), "")
        self.assertEqual(self.names(), ["ddprun-step=4"])

    def test_the_old_one_comes_back_if_the_new_one_cannot_be_put_in_place(self):
        self.write(self.path, "old")
        with mock.patch.object(self.checkpoints.os, "replace",
                               side_effect=OSError(errno.ENOSPC, "no space")):
            with self.assertRaises(OSError):
                self.save()
        self.assertEqual(self.text(self.path), "old")
        self.assertEqual(self.names(), ["ddprun-step=4", "ddprun-step=4.partial"])

    def syncs(self, of_folders=None):
        """Returns what save() syncs and prints; a folder's sync fails with that errno."""
        synced, sync = [], os.fsync

        def told_sync(file):
            synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{file}")))
            if of_folders and stat.S_ISDIR(os.fstat(file).st_mode):
                raise OSError(of_folders, os.strerror(of_folders))
            sync(file)

        with mock.patch.object(self.checkpoints.os, "fsync", told_sync):
            said = self.save()
        return synced, said

    def test_folders_that_are_made_are_synced_into_their_parents(self):
        above = os.path.basename(os.path.dirname(os.path.dirname(self.folder)))
        synced, _ = self.syncs()
        self.assertEqual(synced, [above, "a", "state", "ddprun-step=4.partial", "b"])

    def test_a_file_system_that_syncs_no_folders_is_one_line(self):
        for code in (errno.EINVAL, errno.ENOTSUP):
            with self.subTest(errno.errorcode[code]), \
                    mock.patch.object(self.checkpoints, "_has_told_unsynced", False):
                synced, said = self.syncs(of_folders=code)
                self.assertIn("state", synced)
                self.assertRegex(said, r"^ddprun: rank 0: folder \S+ cannot be synced .*\n$")
                self.assertEqual(self.text(self.path), "new")

    def test_another_error_of_a_folders_sync_and_any_of_a_files_fail(self):
        with self.assertRaises(OSError):
            self.syncs(of_folders=errno.EIO)
        with mock.patch.object(self.checkpoints.os, "fsync",
                               side_effect=OSError(errno.EINVAL, "invalid")):
            with self.assertRaises(OSError):
                self.checkpoints._sync_one(__file__)

    def test_a_url_is_refused(self):
        for url in ("s3://bucket/run", "file:///tmp", pathlib.Path("gs://bucket/run")):
            with self.subTest(url), self.assertRaisesRegex(ValueError, "it is a URL"):
                list(self.checkpoints.paths_under(url))
        self.assertEqual(list(self.checkpoints.paths_under("no/such:folder")), [])


if __name__ == "__main__":
    unittest.main()
