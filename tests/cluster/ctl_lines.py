"""Command lines of ddpctl: each that is taken, with what comes of it, and each that is refused.

usage: ctl_lines.py BIN_DIR [unittest's words]

Method: one run that is over, `gone`, lies in the log folder. A daemon without jobs answers at
{there}, nothing answers at {nobody}. No line asks for the only run here: other tests' may run.
"""

import json
import os
import pty
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import unittest

PATIENCE_S = 120  # on a machine that has no time for it
BIN = ""

REFUSED = "cannot connect to the rendezvous at {nobody}"
NO_JOB = "the rendezvous at {there} has no job"
NO_ANSWER = "no rendezvous answers at {nobody}"
NONE_YET = "there is no job yet"
NOT_ITS = "the token is not that of this rendezvous's --http-token-file"
NO_RUN = "no run here is none; ddpctl jobs lists those at work, ddpctl runs those in "
NEEDS_SECRET = "orders need --operator-secret-file FILE"
TLS = "--tls-ca {ca} --tls-cert {cert} --tls-key {key}"
TLS_ELSE = "--tls_ca {ca} --tls_cert {cert} --tls_key {key}"

VERBS = ["status", "jobs", "events", "stacks", "report", "page", "logs", "runs", "checkpoints",
         "clean", "doctor", "drain", "restart", "hold", "release", "quarantine", "grow", "shrink",
         "stop", "token"]

# Line, exit code, expression that is found in what is written.
TAKEN = [
    ("help help", 0, "^usage: ddpctl help "),
    ("--version", 0, r"^ddprun \d+\.\d+\.\d+\n$"),
    ("status", 69, REFUSED),  # PET_RDZV_ENDPOINT
    ("status --rdzv-endpoint {nobody}", 69, REFUSED),
    ("status --rdzv-endpoint {nobody}", 69, "name it with --rdzv-endpoint, or ask a run on this "
                                            "machine: ddpctl jobs lists them"),
    ("status --rdzv_endpoint={nobody} --rdzv_id=a --json --log_dir {logs}", 69, REFUSED),
    ("status --rdzv-endpoint {there}", 0, NO_JOB),
    ("status --rdzv-endpoint {nobody},{there}", 0, NO_JOB),
    ("status --rdzv-endpoint {there} --json", 0, '"jobs":\\[\\]'),
    ("status --rdzv-endpoint {there} --rdzv-id a", 1,
     "the rendezvous at {there} knows no job a; leave --rdzv-id out to see all"),
    ("status --rdzv-endpoint {there} --secret-file {secret}", 2, "is not that of the rendezvous"),
    ("status --rdzv-endpoint {there} --secret_file {missing}", 2, "missing"),
    ("status --rdzv-endpoint {there} --insecure", 2, "asks for a secret"),
    (f"status --rdzv-endpoint localhost:1 {TLS}", 2, "tls-"),
    (f"status --rdzv-endpoint localhost:1 {TLS_ELSE}", 2, "tls-"),
    ("status --rdzv-endpoint a:b:c", 2, "--rdzv-endpoint: "),
    ("status a --rdzv-endpoint {there}", 1,
     "the rendezvous at {there} knows no job a; it has none"),
    ("status --rdzv-endpoint {nobody} --json a", 69, REFUSED),
    ("status none", 1, NO_RUN),
    ("status none --json --log-dir {logs}", 1, NO_RUN),
    ("status --json --log_dir={logs} none", 1, NO_RUN),
    ("status jobs", 1, "no run here is jobs"),  # the name of a run
    ("status -- none", 1, NO_RUN),
    ("status gone", 0, r"^job gone: over, exit code 0: every rank exited 0\n  ended   "),
    ("status {run}", 0, "^job gone: over"),
    ("status {name} --log-dir {logs}", 0, "next    ddpctl report {name} --log-dir {logs}\n"),
    ("status gone --json", 0, r'^{{"v":1,"ended":true,"state":"over","job":"gone",[^\n]*}}\n$'),
    ("status .", 1, r"^ddpctl: \. has no run.json: it is no folder of a run\n$"),
    ("jobs", 0, "^"),
    ("jobs --json --log-dir {logs}", 0, "^"),
    ("jobs --log_dir {logs}", 0, "^"),
    ("events gone", 0, '"event":"exit"'),
    ("events {run}", 0, '"event":"exit"'),
    ("events --from 2 gone --log-dir {logs}", 0, '^{{[^\n]*"seq":2,'),
    ("events gone -f", 0, '"event":"exit"'),
    ("events gone --node elsewhere", 1, "job gone has no node elsewhere on this machine; it has "),
    ("events gone --follow --log_dir {logs}", 0, '"event":"exit"'),
    ("events gone --json", 0, '"event":"exit"'),
    ("events --rdzv-id gone", 0, '"event":"exit"'),  # PET_RDZV_ENDPOINT does not answer.
    ("events --rdzv-id none", 1, NO_ANSWER + ".*; " + NO_RUN),
    ("events none", 1, NO_RUN),
    ("events --rdzv-endpoint {there}", 1, NONE_YET),
    ("events --rdzv_endpoint {there} --rdzv_id a --from 3 -f", 1, "no job a"),
    ("events a --rdzv-endpoint {there}", 1, "no job a"),
    ("events --rdzv-endpoint {nobody} --rdzv-id a", 69, NO_ANSWER),
    ("events --rdzv-endpoint {there} --http-token-file {secret}", 2, NOT_ITS),
    ("events --rdzv-endpoint {there} --http_token_file {missing}", 1, "missing"),
    ("events --rdzv-endpoint {there} --operator-secret-file {secret}", 2, NOT_ITS),
    ("events --rdzv-endpoint {there} --operator_secret_file {missing}", 1, "missing"),
    (f"events --rdzv-endpoint localhost:1 {TLS}", 2, "tls-"),
    (f"events --rdzv-endpoint localhost:1 {TLS_ELSE}", 2, "tls-"),
    ("events gone --tls-ca {ca}", 0, '"event":"exit"'),
    ("stacks none", 1, NO_RUN),
    ("stacks none --rank 0,2 --log-dir {logs}", 1, NO_RUN),
    ("stacks none --rank 0 2", 1, NO_RUN),
    ("stacks none --rank 0 --rank 2", 1, NO_RUN),
    ("stacks --all none --log_dir {logs}", 1, NO_RUN),
    ("stacks none", 1, NO_RUN + r".*; the rendezvous at \S+: there is no job none"),
    ("stacks none --node gpu-07", 1, NO_RUN),
    ("stacks a --rdzv-endpoint {there}", 1, "there is no job a"),
    ("stacks a --rdzv-endpoint {nobody}", 69, NO_ANSWER),
    ("stacks a --rank 0,2 --rdzv_endpoint {there}", 1, "there is no job a"),
    ("stacks a --rdzv-endpoint {there} --http-token-file {secret}", 2, NOT_ITS),
    ("stacks a --rdzv-endpoint {there} --operator-secret-file {missing}", 1, "missing"),
    (f"stacks a --rdzv-endpoint localhost:1 {TLS}", 2, "tls-"),
    ("report gone", 0,
     r"^\S+: succeeded: [^\n]*\n  ended   [^\n]*, exit code 0; started [^\n]*\n  time    "),
    ("report {run} --log-dir {logs}", 0, "succeeded"),
    ("report none", 1, NO_RUN),
    ("report gone --node elsewhere", 1, "job gone has no node elsewhere"),
    ("report gone --bundle {file}", 0, "bytes; look through it before you pass it on"),
    ("report --bundle={file} --log_dir {logs} gone", 0, "^{file}: "),
    ("report gone --bundle {missing}/x", 2, "name another file with --bundle"),
    ("report none --bundle {file} --log-dir {logs}", 1, NO_RUN),
    ("checkpoints list .", 1, r"^ddpctl: \. has no checkpoint; name the folder in which "),
    ("checkpoints verify {missing} --step 3 --json", 1, "has no checkpoint; name"),
    ("checkpoints pin .", 2, "no step to pin is named; write ddpctl checkpoints pin . STEP"),
    ("checkpoints pin . 3", 1, "step-000000000003 cannot be opened"),
    ("checkpoints unpin {missing} --step 3", 1, "step-000000000003 cannot be opened"),
    ("page none", 1, NO_RUN),
    ("page none --log-dir {logs} --node gpu-07", 1, NO_RUN),
    ("page .", 1, r"^ddpctl: \. has no run.json: it is no folder of a run\n$"),
    ("page gone --node elsewhere", 1, "job gone has no node elsewhere"),
    ("logs", 0, r"^\[0\] said by 0\n\[1\] said by 1\n$"),
    ("logs --rank 0", 0, "^said by 0\n$"),
    ("logs --rank 0,1 -f", 0, "said by 1"),
    ("logs --rank 0 1 --follow", 0, "said by 1"),
    ("logs --rank 0 --rank 1 --lines 1", 0, "said by 1"),
    ("logs -n 1", 0, "said by 1"),
    ("logs -n1 -f", 0, "said by 1"),
    ("logs -fn1", 0, "said by 1"),
    ("logs -n -1", 0, "said by 1"),  # all
    ("logs --grep 'by 1'", 0, r"^\[1\] said by 1\n$"),
    ("logs --grep '('", 2, "--grep \\(: "),
    ("logs --generation 1", 0, "said by 1"),
    ("logs --generation 2", 1, "generation"),
    ("logs --rank 7", 1, "7"),
    ("logs --rdzv-id gone --log-dir {logs}", 0, "said by 1"),
    ("logs --rdzv_id=none --log_dir={logs}", 1, "none"),
    ("logs --log-dir {missing}", 1, "missing"),
    ("logs --node elsewhere", 1, "has no logs of any run and its node elsewhere"),
    ("logs --tls-ca {ca}", 0, "said by 1"),
    ("logs --all --rdzv-id none", 1, NO_RUN),  # No rendezvous answers.
    ("logs --all --rdzv-endpoint {there}", 1, NONE_YET),
    ("logs --all --rdzv_endpoint {there} --rdzv_id a --rank 0 -n 1 --grep x", 1, "no job a"),
    ("logs --all --rdzv-endpoint {nobody} -f", 69, NO_ANSWER),
    ("logs --all --rdzv-endpoint {nobody} --generation 1", 69, NO_ANSWER),
    ("logs --all --rdzv-endpoint {there} --http-token-file {secret}", 2, NOT_ITS),
    ("logs --all --rdzv-endpoint {there} --http_token_file {secret}", 2, NOT_ITS),
    ("logs --all --rdzv-endpoint {there} --operator-secret-file {secret}", 2, NOT_ITS),
    ("logs --all --rdzv-endpoint {there} --operator_secret_file {secret}", 2, NOT_ITS),
    (f"logs --all --rdzv-endpoint localhost:1 {TLS}", 2, "tls-"),
    ("logs --all --rank 0,1", 2, "--all takes one --rank, or none for all"),
    ("logs --all --http-token-file {secret} --rdzv-id none", 1, "none"),
    ("node-logs --run {missing} --host h", 0, "^$"),
    ("node-logs --run {run} --host h", 0, r"^\[0 h\] said by 0\n\[1 h\] said by 1\n$"),
    ("node-logs --run {run} --host h --line-bytes 64 --rank 1 --lines 1 --grep=by --generation 1",
     0, r"^\[1 h\] said by 1\n$"),
    ("node-logs --run {run} --host h --follow", 0, "said by 0"),
    ("runs", 0, "gone_"),
    ("runs --json --rdzv-id gone --log-dir {logs}", 0, '"job":"gone"'),
    ("runs --rdzv_id none --log_dir {logs}", 0, "has no runs of the job none"),
    ("clean --dry-run", 0, "^would remove {logs}/gone_"),
    ("clean --dry_run --rdzv-id gone --log-dir {logs} --keep 0", 0, "^would remove {logs}/gone_"),
    ("clean --dry-run --keep 1", 0, "^$"),
    ("clean --keep 1 --rdzv_id none --log_dir {logs}", 0, "^$"),
    ("clean --keep -1", 0, "^$"),  # all
    ("clean --keep 0 --besides {name}", 0, "^$"),
    ("doctor", None, "open files"),
    ("doctor --json", None, '^{{"'),
    ("doctor --peers", 2, "--peers: nobody says which nodes"),
    ("doctor --peers 192.0.2.77", 2, "192.0.2.77"),
    ("doctor --peers=192.0.2.[77-78] --port 29400 --wait 0.5 --json", 2, "192.0.2.77"),
    ("doctor --peers 'gpu-['", 2, "--peers gpu-\\["),
    ("drain a --rdzv-id none", 1, "no run here is none.*; to a rendezvous with "
                                  "--operator-secret-file FILE"),
    ("drain --rdzv_id none --log-dir {logs} a", 1, NO_RUN),
    ("drain restart", 1, NO_RUN),  # PET_RDZV_ID; a node of that name
    ("restart", 1, NO_RUN),
    ("restart --rdzv-endpoint {there}", 2, NEEDS_SECRET),
    ("restart --rdzv-endpoint {there} --operator-secret-file {secret}", 2, "takes no orders"),
    ("restart --rdzv_endpoint {nobody} --operator_secret_file {secret} --json", 69, REFUSED),
    ("restart --operator-secret-file {missing}", 2, "missing"),
    (f"restart --rdzv-endpoint localhost:1 --operator-secret-file {{secret}} {TLS}", 2, "tls-"),
    (f"restart --rdzv-endpoint localhost:1 --operator-secret-file {{secret}} {TLS_ELSE}", 2,
     "tls-"),
    ("restart --tls-ca {ca}", 1, NO_RUN),
    ("hold --for 10m", 1, NO_RUN),
    ("hold --for soon --rdzv-endpoint {there} --operator-secret-file {secret}", 2,
     "--for soon: write a time like 90, 90s, 10m or 2h"),
    ("release", 1, NO_RUN),
    ("release a --json --log_dir {logs}", 1, NO_RUN),
    ("quarantine a", 1, NO_RUN),
    ("quarantine a --for 1h", 1, NO_RUN),
    ("quarantine --for 90 a", 1, NO_RUN),
    ("grow 2", 1, NO_RUN),
    ("shrink 1", 1, NO_RUN),
    ("stop", 1, NO_RUN),
    ("stop --json", 1, NO_RUN),
    ("token", 2, "token: of which secret\\? Name it with --operator-secret-file FILE"),
    ("token --operator-secret-file {secret}", 0, "^[0-9a-f]{{64}}\n$"),
    ("token --operator_secret_file={secret}", 0, "^[0-9a-f]{{64}}\n$"),
    ("token --operator-secret-file {missing}", 2, "missing"),
]

# ddpctl finds the mistakes in these lines before it asks anything: exit code 2 and one line.
WRONG = [
    "checkpoints", "checkpoints list", "checkpoints shred .", "checkpoints list . --step -1",
    "",
    "statsu",
    "stat",  # no abbreviations
    "Status",
    "help statsu",
    "help status jobs",
    "help --json",
    "--json",
    "--json status none",  # flags are the verb's
    "--rdzv-endpoint {nobody} status",
    "status --jsn",
    "status --js",
    "status --rdzv-end {nobody}",
    "status none other",
    "status --follow none",
    "status -f",
    "status --rdzv-endpoint",
    "status none --rdzv-id a",
    "status a --rdzv-id a --rdzv-endpoint {there}",
    "status --secret-file {secret} --insecure",
    "status --rdzv-id a --rdzv-id b",
    "jobs none",
    "jobs --rdzv-id a",
    "events none --from 0",
    "events none --from x",
    "events none --rdzv-id a",
    "events none --http-token-file {secret}",
    "events none --operator-secret-file {secret}",
    "events --rdzv-endpoint {there} --http-token-file {secret} --operator-secret-file {secret}",
    "stacks none --rank -1",
    "stacks --rank 0 none",
    "stacks none --rank 0 --all",
    "stacks a --all --rdzv-endpoint {there}",
    "stacks a --node gpu-07 --rdzv-endpoint {there}",
    "stacks a --http-token-file {secret}",
    "events a --node gpu-07 --rdzv-endpoint {there}",
    "logs --all --node gpu-07",
    "report none --bundel {file}",
    "logs none",
    "logs --rank x",
    "logs -n x",
    "logs --generation 0",
    "logs --generation 1 --follow",
    "logs --rdzv-endpoint {there}",
    "logs --http-token-file {secret}",
    "logs --operator-secret-file {secret}",
    "logs --all --http-token-file {secret} --operator-secret-file {secret}",
    "node-logs --host h",
    "node-logs --run {missing}",
    "runs --keep 1",
    "clean --json",
    "clean --keep x",
    "doctor none",
    "doctor --port 29400",
    "doctor --wait 1",
    "doctor --peers a --port 0",
    "doctor --peers a --port 65536",
    "doctor --peers a --wait 0",
    "drain",
    "drain a b",
    "restart a",
    "hold",
    "hold 10m",
    "release a b",
    "quarantine",
    "quarantine --for 10m",
    "grow",
    "grow 0",
    "grow x",
    "shrink",
    "stop --for 10m",
    "stop --secret-file {secret}",
    "token none",
]

# ddpctl prints these messages for some wrong lines.
MEANT = [
    ("", "a verb comes first; see ddpctl --help"),
    ("statsu", r"there is no verb statsu \(did you mean status\?\); see ddpctl --help"),
    ("sta", r"did you mean status or stacks\?"),
    ("quar a", r"did you mean quarantine\?"),
    ("help statsu", r"there is no verb statsu \(did you mean status\?\); see ddpctl --help"),
    ("xyzzy", "there is no verb xyzzy; see ddpctl --help"),
    ("--json status none", "--json comes before its verb; write ddpctl status --json"),
    ("status --jsn", r"status has no --jsn \(did you mean --json\?\); see ddpctl status --help"),
    ("status --rdzv-end x", r"did you mean --rdzv-endpoint\?"),
    ("status --rdzv_endpiont x", r"did you mean --rdzv-endpoint\?"),
    ("status none --xyzzy", "status has no --xyzzy; see ddpctl status --help"),
    ("status none --follow", "status has no --follow: it is a flag of events, logs; see "),
    ("jobs -f", "jobs has no -f: it is a flag of events, logs; see ddpctl jobs --help"),
    ("runs --keep=1", "runs has no --keep: it is a flag of clean; "),
    ("stop --secret_file x", "stop has no --secret_file: it is a flag of status; "),
    ("report none --bundel x", r"did you mean --bundle\?"),
    ("drain", "NODE is required; see ddpctl drain --help"),
    ("logs none", "logs: unexpected argument none; see ddpctl logs --help"),
    ("status none --rdzv-id a", "RUN excludes --rdzv-id; see ddpctl status --help"),
    ("doctor --port 1", "--port requires --peers; see ddpctl doctor --help"),
]


class Lines(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = cls.enterClassContext(tempfile.TemporaryDirectory(prefix="ddprun-lines-"))
        nobody = cls.enterClassContext(socket.socket())
        nobody.bind(("127.0.0.1", 0))  # It does not listen.
        cls.environment = {
            key: value for key, value in os.environ.items()
            if not re.match("SLURM|PET_|DDPRUN_|TORCH|KUBERNETES_|XDG_", key)}
        cls.environment.update(HOME=cls.folder, LC_ALL="C", PET_LOG_DIR=f"{cls.folder}/logs")
        with open(f"{cls.folder}/secret", "w", encoding="ascii",
                  opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write("ab" * 32 + "\n")
        subprocess.run([f"{BIN}/ddprun", "--nproc-per-node", "2", "--rdzv-id", "gone",
                        "--no-python", "/bin/sh", "-c", "echo said by $RANK"], check=True,
                       env=cls.environment, cwd=cls.folder, stdin=subprocess.DEVNULL,
                       capture_output=True, timeout=PATIENCE_S)
        daemon = subprocess.Popen(
            [f"{BIN}/ddprun-rendezvous", "--port", "0"], env=cls.environment, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        cls.addClassCleanup(daemon.stdout.close)
        cls.addClassCleanup(daemon.wait)
        cls.addClassCleanup(daemon.terminate)
        [name] = [name for name in os.listdir(f"{cls.folder}/logs") if name.startswith("gone_")]
        cls.words = {
            "there": daemon.stdout.readline().rsplit(" ", 1)[1].strip(),
            "nobody": f"127.0.0.1:{nobody.getsockname()[1]}",
            "logs": f"{cls.folder}/logs", "name": name, "run": f"{cls.folder}/logs/{name}",
            **{word: f"{cls.folder}/{word}"
               for word in ("secret", "missing", "file", "ca", "cert", "key")}}

    def ctl(self, line):
        words = [word.format(**self.words) for word in shlex.split(line)]
        verb = words[0] if words else ""
        # Orders go to a rendezvous wherever one is named.
        endpoint = {}
        if verb in ("status", "events", "logs"):
            endpoint["PET_RDZV_ENDPOINT"] = self.words["nobody"]
        return subprocess.run(
            [f"{BIN}/ddpctl", *words], text=True, stdin=subprocess.DEVNULL, capture_output=True,
            env={**self.environment, **endpoint, "PET_RDZV_ID": "none"}, cwd=self.folder,
            timeout=PATIENCE_S, check=False)

    def test_what_is_taken(self):
        for line, code, text in TAKEN:
            with self.subTest(line):
                done = self.ctl(line)
                self.assertIn(done.returncode, (0, 1) if code is None else (code,), done)
                self.assertRegex(done.stdout + done.stderr, text.format(**self.words))
                self.assertNotIn("--help", done.stderr)

    def test_what_is_refused(self):
        for line in WRONG:
            with self.subTest(line):
                done = self.ctl(line)
                self.assertEqual((done.returncode, done.stdout), (2, ""), done)
                self.assertRegex(done.stderr, r"^ddpctl: [^\n]*--help[^\n]*\n$")

    def test_what_was_meant_is_said(self):
        for line, text in MEANT:
            with self.subTest(line):
                self.assertRegex(self.ctl(line).stderr, text)

    def at_a_terminal(self, *words):
        terminal, stdout = pty.openpty()
        with os.fdopen(terminal, "rb") as file:
            done = subprocess.Popen([f"{BIN}/ddpctl", *words], stdin=subprocess.DEVNULL,
                                    stdout=stdout, env=self.environment, cwd=self.folder)
            self.addCleanup(done.wait)
            self.addCleanup(done.kill)
            os.close(stdout)
            text = b""
            try:
                while piece := os.read(file.fileno(), 65536):
                    text += piece
            except OSError:  # The terminal's last user is gone.
                pass
        self.assertEqual(done.wait(PATIENCE_S), 0)
        return text.decode().splitlines()

    def test_people_read_events_as_lines_and_programs_as_json(self):
        events = [json.loads(line) for line in self.at_a_terminal("events", "gone", "--json")]
        lines = self.at_a_terminal("events", "gone")
        self.assertEqual(len(lines), len(events))
        for event, line in zip(events, lines):
            self.assertRegex(line, r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}  ")
            self.assertIn(event["event"].replace("_", " "), line)
        text = "\n".join(lines)
        self.assertRegex(text, r"formed +generation 1: 1 node, 2 workers\n")
        self.assertRegex(text, r"finished +generation 1, rank 1\n")
        self.assertRegex(text, r"exit +exit code 0$")

    def help_of(self, line, lines_max):
        done = self.ctl(line)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertLessEqual(max(map(len, done.stdout.splitlines())), 80)
        self.assertLessEqual(len(done.stdout.splitlines()), lines_max)
        return done.stdout

    def test_help_of_each_verb_fits_a_screen(self):
        text = self.help_of("--help", 40)
        self.assertEqual(self.ctl("-h").stdout, text)
        self.assertEqual(self.ctl("help").stdout, text)
        verbs = re.findall(r"^  ([a-z]+)  +\w", text, re.MULTILINE)
        self.assertEqual(verbs, VERBS)
        taken = [shlex.split(line) for line, _, _ in TAKEN]
        for verb in verbs:
            with self.subTest(verb):
                text = self.help_of(f"{verb} --help", 30)
                self.assertTrue(text.startswith(f"usage: ddpctl {verb} "))
                self.assertIn(f"\n  ddpctl {verb}", text.partition("\nexample")[2])
                self.assertEqual(self.ctl(f"{verb} -h").stdout, text)
                self.assertEqual(self.ctl(f"--help {verb}").stdout, text)
                self.assertEqual(self.ctl(f"help {verb}").stdout, text)
                used = {word.partition("=")[0].replace("_", "-") for words in taken
                        if words[0] == verb for word in words if word.startswith("--")}
                shown = set(re.findall(r"^  (?:-\w, )?(--[a-z-]+)", text, re.MULTILINE))
                self.assertLessEqual(used - {"--"}, shown)
                self.assertIn("--help", shown)


if __name__ == "__main__":
    BIN = os.path.abspath(sys.argv[1])
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
