"""HTTPS on the port of a daemon with --tls-*: what Python's ssl, curl, openssl and ddpctl get.

usage: https.py BIN_DIR [unittest's words]
"""

import http.client
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import unittest

PATIENCE_S = 120  # on a machine that has no time for it
BIN = ""
NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout")
JSON = {"Content-Type": "application/json"}


class Https(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ddprun-https-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.openssl("req", "-x509", *NEW_KEY, "ca.key", "-out", "ca.pem", "-days", "2", "-subj",
                     "/CN=ours")
        self.openssl("req", *NEW_KEY, "key.pem", "-out", "request.pem", "-subj", "/CN=head")
        self.write("names", "subjectAltName=DNS:localhost,IP:127.0.0.1")
        self.openssl("x509", "-req", "-in", "request.pem", "-CA", "ca.pem", "-CAkey", "ca.key",
                     "-CAcreateserial", "-days", "2", "-extfile", "names", "-out", "cert.pem")
        self.write("look", "ab" * 32)
        self.write("operators", "cd" * 32)

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8",
                  opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(text + "\n")

    def openssl(self, *arguments):
        subprocess.run(["openssl", *arguments], cwd=self.folder, check=True, capture_output=True)

    def environment(self):
        kept = {key: value for key, value in os.environ.items()
                if not re.match("SLURM|PET_|DDPRUN_|TORCH|KUBERNETES_", key)}
        return {**kept, "HOME": self.folder, "LC_ALL": "C"}

    def start_daemon(self, *arguments):
        daemon = subprocess.Popen(
            [os.path.join(BIN, "ddprun-rendezvous"), "--port", "0", "--tls-cert", "cert.pem",
             "--tls-key", "key.pem", "--http-token-file", "look", "--operator-secret-file",
             "operators", *arguments], cwd=self.folder, text=True, env=self.environment(),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.addCleanup(daemon.stdout.close)
        self.addCleanup(daemon.wait)
        self.addCleanup(daemon.terminate)
        return int(daemon.stdout.readline().rsplit(":", 1)[1])

    def run_program(self, *words, **options):
        return subprocess.run(words, cwd=self.folder, text=True, env=self.environment(),
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE_S,
                              check=False, **options)

    def ddpctl(self, *arguments):
        return self.run_program(os.path.join(BIN, "ddpctl"), *arguments)

    def context(self):
        return ssl.create_default_context(cafile=self.path("ca.pem"))

    def connect(self, port):
        connection = http.client.HTTPSConnection("localhost", port, timeout=PATIENCE_S,
                                                 context=self.context())
        self.addCleanup(connection.close)
        return connection

    def answer(self, connection, method, path, body=None, headers=None):
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    def test_python(self):
        port = self.start_daemon()
        connection = self.connect(port)
        for _ in range(3):  # of one connection
            status, text = self.answer(connection, "GET", "/status")
            self.assertEqual((status, json.loads(text)["jobs"]), (200, []))
        self.assertEqual(connection.sock.version(), "TLSv1.3")
        status, page = self.answer(connection, "GET", "/page.js")
        with open(os.path.join(os.path.dirname(os.path.abspath(__file__)),
                               "../../rendezvous/http/page/page.js"), encoding="utf-8") as file:
            self.assertEqual((status, page), (200, file.read()))
        with self.assertRaises(ssl.SSLError):
            other = self.context()
            other.maximum_version = ssl.TLSVersion.TLSv1_2
            other.wrap_socket(socket.create_connection(("localhost", port)),
                              server_hostname="localhost")

    def test_operators(self):
        port = self.start_daemon()
        printed = self.ddpctl("token", "--operator-secret-file", "operators")
        self.assertRegex(printed.stdout, r"\A[0-9a-f]{64}\n\Z")
        token = printed.stdout.strip()
        connection = self.connect(port)
        bearer = {"Authorization": f"Bearer {token}", **JSON}
        status, text = self.answer(connection, "POST", "/jobs/llama/stop", "{}", bearer)
        self.assertEqual(status, 404, text)  # it may, but there is no such job
        bearer = {"Authorization": f"Bearer {'cd' * 32}", **JSON}
        status, text = self.answer(self.connect(port), "POST", "/jobs/llama/stop", "{}", bearer)
        self.assertEqual(status, 401)
        self.assertIn("that is the operators' secret itself", json.loads(text)["error"])
        self.assertNotEqual(self.ddpctl("token").returncode, 0)
        self.assertIn("--operator-secret-file FILE", self.ddpctl("token").stderr)

    @unittest.skipUnless(shutil.which("curl"), "there is no curl")
    def test_curl(self):
        port = self.start_daemon()
        url = f"https://localhost:{port}/status"
        told = self.run_program("curl", "-sS", "--cacert", "ca.pem", url)
        self.assertEqual((told.returncode, json.loads(told.stdout)["jobs"]), (0, []), told.stderr)
        # To its end, which TLS must say.
        old = self.run_program("curl", "-sS", "--http1.0", "--cacert", "ca.pem",
                               f"https://localhost:{port}/")
        self.assertEqual(old.returncode, 0, old.stderr)
        self.assertTrue(old.stdout.endswith("</html>\n"))
        self.assertNotEqual(self.run_program("curl", "-sS", url).returncode, 0)
        clear = self.run_program("curl", "-sS", f"http://127.0.0.1:{port}/status")
        self.assertEqual(json.loads(clear.stdout)["jobs"], [])

    def test_a_client_certificate(self):
        port = self.start_daemon("--tls-ca", "ca.pem")
        shown = self.context()
        shown.load_cert_chain(self.path("cert.pem"), self.path("key.pem"))
        connection = http.client.HTTPSConnection("localhost", port, timeout=PATIENCE_S,
                                                 context=shown)
        self.addCleanup(connection.close)
        self.assertEqual(self.answer(connection, "GET", "/status")[0], 200)
        with self.assertRaises((ssl.SSLError, ConnectionError)):
            self.answer(self.connect(port), "GET", "/status")
        endpoint = ("--rdzv-endpoint", f"localhost:{port}", "--tls-ca", "ca.pem")
        none = self.ddpctl("events", *endpoint)
        self.assertIn("give --tls-cert and --tls-key", none.stderr)
        told = self.ddpctl("events", *endpoint, "--tls-cert", "cert.pem", "--tls-key", "key.pem")
        self.assertIn("there is no job yet", told.stderr)

    def test_openssl(self):
        port = self.start_daemon()
        request = "GET /status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        client = subprocess.run(
            ["openssl", "s_client", "-connect", f"localhost:{port}", "-CAfile", "ca.pem",
             "-verify_return_error", "-quiet", "-ign_eof"], cwd=self.folder, input=request,
            text=True, capture_output=True, timeout=PATIENCE_S, check=False)
        self.assertTrue(client.stdout.startswith("HTTP/1.1 200 OK"), client.stderr)

    def test_ddpctl(self):
        port = self.start_daemon()
        endpoint = ("--rdzv-endpoint", f"localhost:{port}")
        for more in (("--tls-ca", "ca.pem"),
                     ("--tls-ca", "ca.pem", "--http-token-file", "look"),
                     ("--tls-ca", "ca.pem", "--operator-secret-file", "operators"),
                     ()):  # on its own machine in clear
            for verb in (("events",), ("logs", "--all")):
                told = self.ddpctl(*verb, *endpoint, *more)
                self.assertIn("there is no job yet", told.stderr)
        secret = self.ddpctl("events", *endpoint, "--http-token-file", "operators")
        self.assertIn("that is the operators' secret itself", secret.stderr)
        self.openssl("req", "-x509", *NEW_KEY, "other.key", "-out", "other.pem", "-days", "2",
                     "-subj", "/CN=other")
        other = self.ddpctl("events", *endpoint, "--tls-ca", "other.pem")
        self.assertIn("its certificate is not trusted", other.stderr)

    def test_a_token_that_is_a_secret_of_the_wire(self):
        started = self.run_program(
            os.path.join(BIN, "ddprun-rendezvous"), "--port", "0", "--secret-file", "look",
            "--http-token-file", "look")
        self.assertEqual(started.returncode, 2)
        self.assertIn("it is the secret of the nodes, which must not travel", started.stderr)


if __name__ == "__main__":
    BIN = os.path.abspath(sys.argv[1])
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
