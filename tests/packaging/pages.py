"""Man pages and completions know every flag of ddprun, and shells can use them.

Usage: pages.py BIN SOURCE makes them; BIN holds ddprun, ddprun-rendezvous and ddpctl.
pages.py --made SHARE SOURCE checks those that lie in SHARE, of a package.
"""

import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

IS_MADE = sys.argv[1] == "--made"
FOLDER, SOURCE = map(os.path.abspath, sys.argv[-2:])


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def table_of_flags():
    text = read(os.path.join(SOURCE, "launcher", "plan", "flag_table.cpp"))
    rows = re.findall(r'Flag\{\s*\.name = "([a-z-]+)"(.*?)\},\n', text, re.S)
    return [name for name, fields in rows if "Group::Hidden" not in fields]


def at_a_prompt(command, lines):
    """Returns a shell's terminal output after a user types these lines; the last one ends it."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe(command[0], command, {"PATH": os.environ["PATH"], "TERM": "vt100",
                                         "INPUTRC": "/dev/null", "PS1": "ready> "})
    seen = ""
    with os.fdopen(terminal, "r+b", buffering=0) as file:
        for line in lines:
            while not seen.endswith(("> ", "# ")):
                seen += file.read(4096).decode()
            file.write((line + "\n").encode())
            seen += "\n"
        try:
            while data := file.read(4096):
                seen += data.decode()
        except OSError:  # The terminal's last user is gone.
            pass
    os.waitpid(pid, 0)
    return seen


class Pages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if IS_MADE:
            cls.share = FOLDER
        else:
            cls.share = cls.enterClassContext(tempfile.TemporaryDirectory())
            subprocess.run([sys.executable, "-B", os.path.join(SOURCE, "packaging", "pages.py"),
                            FOLDER, cls.share], check=True)
        cls.bash = os.path.join(cls.share, "bash-completion/completions/ddprun")
        cls.zsh = os.path.join(cls.share, "zsh/site-functions/_ddprun")
        cls.fish = os.path.join(cls.share, "fish/vendor_completions.d/ddprun.fish")

    def complete(self, *words):
        script = (f"source {self.bash}; compopt() {{ echo files; }}; COMP_WORDS=(\"$@\"); "
                  "COMP_CWORD=$(($# - 1)); _ddprun; echo ${COMPREPLY[*]}")
        done = subprocess.run(["bash", "-c", script, "-", *words], check=True, text=True,
                              stdout=subprocess.PIPE)
        return done.stdout.split()

    def test_every_flag_of_the_table_is_in_all_of_them(self):
        names = table_of_flags()
        self.assertIn("nnodes", names)
        man = read(os.path.join(self.share, "man/man1/ddprun.1")).replace("\\-", "-")
        bash, zsh, fish = read(self.bash), read(self.zsh), read(self.fish)
        for name in names:
            self.assertRegex(man, rf"--{name}\b")
            self.assertRegex(bash, rf"[ \"]--{name}[ \"]")
            self.assertRegex(zsh, rf"'--{name}[=\[]")
            self.assertIn(f"-c ddprun -l {name} ", fish)

    def test_bash_completes_flags_and_values(self):
        self.assertEqual(self.complete("ddprun", "--nno"), ["--nnodes"])
        self.assertEqual(self.complete("ddprun", "--nnodes", "2", "--nproc"), ["--nproc-per-node"])
        self.assertEqual(self.complete("ddprun", "--store", ""), ["agent", "daemon"])
        self.assertEqual(self.complete("ddprun", "--store", "=", "d"), ["daemon"])
        self.assertEqual(self.complete("ddprun", "--warm", ""), ["auto", "on", "off"])
        self.assertEqual(self.complete("ddprun", "--nnodes", ""), [])
        self.assertEqual(self.complete("ddprun", "--secret-file", ""), ["files"])

    def test_bash_leaves_what_is_behind_the_program_alone(self):
        self.assertEqual(self.complete("ddprun", "train.py", "--nno"), ["files"])
        self.assertEqual(self.complete("ddprun", "--standalone", "-m", "train", "--nno"), ["files"])

    def test_other_shells_can_read_theirs(self):
        for shell, path in (("zsh", self.zsh), ("fish", self.fish)):
            if shutil.which(shell):
                subprocess.run([shell, "-n", path], check=True)

    def test_each_verb_of_ddpctl_is_in_its_man_page(self):
        man = read(os.path.join(self.share, "man/man1/ddpctl.1")).replace("\\-", "-")
        table = read(os.path.join(SOURCE, "launcher", "ctl", "main.cpp"))
        verbs = re.findall(r'Verb\{"([a-z]+)", k', table)  # those that are listed
        self.assertIn("status", verbs)
        for verb in verbs:
            self.assertIn(f"\n.SS ddpctl {verb}\n.nf\nusage: ddpctl {verb} ", man)

    def test_the_man_pages_are_good_roff(self):
        if not shutil.which("groff"):
            self.skipTest("no groff here")
        for program in ("ddprun", "ddprun-rendezvous", "ddpctl"):
            page = os.path.join(self.share, "man/man1", program + ".1")
            done = subprocess.run(["groff", "-man", "-ww", "-Tascii", "-P-c", page], text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=True)
            self.assertEqual(done.stderr, "")
            self.assertIn("User Commands", done.stdout)


@unittest.skipIf(IS_MADE, "a package's programs may be another processor's")
class PrintCompletion(unittest.TestCase):
    """ddprun --print-completion SHELL"""

    def print_completion(self, shell):
        done = subprocess.run([os.path.join(FOLDER, "ddprun"), "--print-completion", shell],
                              text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout

    def test_every_flag_of_the_table_is_in_that_of_each_shell(self):
        names = table_of_flags()
        for shell, pattern in (("bash", r"[ \"]--{}[ \"]"), ("zsh", r"'--{}[=\[]"),
                               ("tcsh", r"[( ]{}[ )]"), ("fish", "-c ddprun -l {} ")):
            text = self.print_completion(shell)
            for name in names:
                self.assertRegex(text, pattern.format(name))

    def test_tab_at_a_prompt_of_bash_completes_a_flag_and_a_value(self):
        with tempfile.NamedTemporaryFile("w") as script:
            script.write(self.print_completion("bash"))
            script.flush()
            typed = [f"source {script.name}", "ddprun() { printf '<%s>' \"$@\"; echo; }",
                     "ddprun --nn\t2 --store d\t train.py", "exit"]
            seen = at_a_prompt(["bash", "--norc", "--noprofile", "-i"], typed)
        self.assertIn("<--nnodes><2><--store><daemon><train.py>", seen)

    def test_tcsh_completes_a_flag_and_a_value(self):
        if not shutil.which("tcsh"):
            self.skipTest("no tcsh here")
        with tempfile.NamedTemporaryFile("w") as script:
            script.write(self.print_completion("tcsh"))
            script.flush()
            typed = [f"source {script.name}", "alias ddprun echo",
                     "ddprun --nn\t2 --store d\t train.py", "exit"]
            seen = at_a_prompt(["tcsh", "-f"], typed)
        self.assertIn("\n--nnodes 2 --store daemon train.py", seen)

    def test_another_shell_is_refused(self):
        done = subprocess.run([os.path.join(FOLDER, "ddprun"), "--print-completion", "ksh"],
                              text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertEqual(done.returncode, 2)
        self.assertEqual(done.stdout, "")
        self.assertEqual(done.stderr, "ddprun: --print-completion ksh: must be bash or zsh or tcsh "
                                      "or fish\n")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
