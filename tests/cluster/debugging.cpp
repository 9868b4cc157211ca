// A user at ddprun's terminal debugs a worker: real pseudo-terminals, Python's real debugger.

#include <signal.h>

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"
#include "tests/support/torch_python.hpp"

using namespace ddprun::test;

namespace {

const std::vector<std::string> kNoFlags;
constexpr std::string_view kPrompt = "(Pdb) ";

std::size_t count_of(std::string_view text, std::string_view wanted) {
    std::size_t count = 0;
    for (std::size_t at = text.find(wanted); at != text.npos; at = text.find(wanted, at + 1)) {
        ++count;
    }
    return count;
}

struct Shell {
    std::string command;
};

/// ddprun on a terminal of its own, with a script in Python.
class Session {
public:
    Session(const std::vector<std::string>& flags, const std::string& script) {
        write_file(cluster.dir() / "script.py", script);
        std::vector<std::string> argv = {Cluster::program("ddprun"), "--log-dir",
                                         cluster.dir() / "logs"};
        argv.insert(argv.end(), flags.begin(), flags.end());
        argv.push_back(cluster.dir() / "script.py");
        start(argv);
    }

    /// Below a shell with job control.
    Session(const Shell& shell, const std::string& script) {
        write_file(cluster.dir() / "script.py", script);
        start({"/bin/bash", "-m", "-c",
               "DDPRUN=" + Cluster::program("ddprun") + "; " + shell.command});
    }

    static std::string python() {
        return std::string(DDPRUN_TORCH_PYTHON).empty() ? "python3" : DDPRUN_TORCH_PYTHON;
    }

    [[nodiscard]] Process& node() const { return *node_; }

    void wait_for_text(const std::string& text, std::size_t count = 1) {
        cluster.wait_until("the terminal shows '" + text + "' " + std::to_string(count) + " times",
                           [&] { return count_of(node_->out(), text) >= count; });
    }
    /// The debugger's answer to `line`, or to what was typed before.
    void type(const std::string& line) {
        node_->type(line);
        wait_for_text(std::string(kPrompt), ++prompts_);
    }
    void wait_for_prompt() { wait_for_text(std::string(kPrompt), ++prompts_); }

    [[nodiscard]] std::string log(int rank = 0) {
        const std::string run = std::filesystem::canonical(cluster.dir() / "logs/latest").string();
        return read_file(run + "/by-rank/" + std::to_string(rank) + "/output.log");
    }

    Cluster cluster;
    std::string modes;  ///< of the terminal before anything happened

private:
    void start(const std::vector<std::string>& argv) {
        StartOptions options;
        options.argv = argv;
        options.name = "ddprun on a terminal";
        options.is_on_terminal = true;
        options.env = {{"TERM", "xterm"}, {"PYTHON_EXEC", python()}};
        node_ = &cluster.start(options);
        modes = node_->terminal_modes();
    }

    Process* node_ = nullptr;
    std::size_t prompts_ = 0;
};

constexpr const char* kLoop = R"(import time
turns = 0
print('loops', flush=True)
while True:
    turns += 1
    time.sleep(0.001)
)";

}  // namespace

TEST_CASE("a single worker on a terminal stops at a breakpoint as without ddprun") {
    Session session(kNoFlags,
                    "import os\nprint(os.isatty(0), flush=True)\nx = 40\ngradient_norm = 7\n"
                    "breakpoint()\nx += 1\ny = 2\nprint('sum', x + y)\n");
    session.wait_for_prompt();
    session.type("n\r");
    session.type("p 'x is', x\r");
    session.wait_for_text("('x is', 41)");
    // Readline edits the line, and completes a name.
    session.type("p undefined\b\b\b\b\b\b\b\b\b'ed', 'ited'\r");
    session.wait_for_text("('ed', 'ited')");
    session.type("p 'norm is', gradient_n\t\r");
    session.wait_for_text("('norm is', 7)");
    session.node().type("c\r");
    CHECK(session.node().wait_exit() == 0);
    session.node().wait_for_line("^sum 43\r$");
    CHECK(session.node().terminal_modes() == session.modes);
    const std::string log = session.log();
    CHECK(log.starts_with("True\n"));
    CHECK(log.find("p 'x is', x") != std::string::npos);
    CHECK(log.ends_with("sum 43\n"));
}

TEST_CASE("Ctrl-C ends a single worker on a terminal, and is no failure to restart after") {
    Session session(std::vector<std::string>{"--max-restarts", "3"}, kLoop);
    session.wait_for_text("loops\r\n");
    session.node().type("\x03");
    CHECK(session.node().wait_exit() == 128 + SIGINT);
    CHECK(count_of(session.node().out(), "KeyboardInterrupt") == 1);
    CHECK(session.node().count_lines("^loops\r$") == 1);
    CHECK(session.node().count_lines(": stopping|failed|was killed") == 0);
    CHECK(session.node().terminal_modes() == session.modes);
}

TEST_CASE("Ctrl-C below the debugger returns to its prompt") {
    Session session(kNoFlags, std::string("breakpoint()\n") + kLoop);
    session.wait_for_prompt();
    session.node().type("c\r");
    session.wait_for_text("loops\r\n");
    session.node().type("\x03");
    session.wait_for_prompt();
    session.type("p 'turned', turns >= 0\r");
    session.wait_for_text("('turned', True)");
    session.node().type("import os; os._exit(7)\r");
    CHECK(session.node().wait_exit() == 7);
    CHECK(session.node().terminal_modes() == session.modes);
}

TEST_CASE("two quick Ctrl-C that end nothing are explained, the third one ends the job") {
    Session session(std::vector<std::string>{"--shutdown-timeout", "0.1"},
                    std::string("import signal\nsignal.signal(2, signal.SIG_IGN)\n") + kLoop);
    session.wait_for_text("loops");
    session.node().type("\x03\x03");
    session.node().wait_for_line("Ctrl-C went to the worker; once more within a second");
    session.node().type("\x03\x03\x03");
    session.node().wait_for_line("^ddprun: SIGINT: stopping");
    CHECK(session.node().wait_exit() == 128 + SIGINT);
    CHECK(session.node().terminal_modes() == session.modes);
}

TEST_CASE("the terminal is as before however the worker or ddprun ends") {
    SECTION("the worker is killed while its own terminal is raw") {
        Session session(kNoFlags, "import os, tty\ntty.setraw(0)\nos.kill(os.getpid(), 9)\n");
        CHECK(session.node().wait_exit() == 128 + SIGKILL);
        CHECK(session.node().terminal_modes() == session.modes);
    }
    SECTION("ddprun gets SIGTERM while somebody debugs") {
        Session session(kNoFlags, "breakpoint()\n");
        session.wait_for_prompt();
        CHECK(session.node().terminal_modes() != session.modes);
        session.node().signal(SIGTERM);
        CHECK(session.node().wait_exit() == 128 + SIGTERM);
        CHECK(session.node().terminal_modes() == session.modes);
    }
    SECTION("ddprun is killed while somebody debugs: its keeper does it") {
        Session session(kNoFlags, "breakpoint()\n");
        session.wait_for_prompt();
        session.node().signal(SIGKILL);
        CHECK(session.node().wait_exit() == -SIGKILL);
        session.cluster.wait_all_gone();
        CHECK(session.node().terminal_modes() == session.modes);
    }
}

TEST_CASE("Ctrl-Z stops ddprun for its shell, and the terminal is the worker's again after fg") {
    Session session(Shell{"\"$DDPRUN\" --log-dir logs script.py; echo stopped $?; read -r line; "
                          "echo \"read $line\"; fg; echo ended $?"},
                    "import os\nbreakpoint()\nprint('size', *os.get_terminal_size())\n");
    session.wait_for_prompt();
    session.node().type("\x1a");
    session.node().wait_for_line("^stopped 148");
    CHECK(session.node().terminal_modes() == session.modes);
    session.node().resize(30, 90);
    session.node().type("shell\n");
    session.node().wait_for_line("^read shell");
    session.node().wait_for_line("script.py");
    session.type("p 'still', 'here'\r");
    session.wait_for_text("('still', 'here')");
    session.node().type("c\r");
    session.node().wait_for_line("^size 90 30");
    session.node().wait_for_line("^ended 0");
    CHECK(session.node().wait_exit() == 0);
    CHECK(session.node().terminal_modes() == session.modes);
}

TEST_CASE("--debug-rank stops one rank at a breakpoint that all have, the others are quiet") {
    Session session(std::vector<std::string>{"--nproc-per-node", "2", "--debug-rank", "1",
                                             "--hang-timeout", "1"},
                    "import os, sys\nrank = os.environ['RANK']\nprint('hello from', rank)\n"
                    "print('stdin', len(sys.stdin.read()) if rank == '0' else 'kept')\n"
                    "breakpoint()\nprint('on', rank)\n");
    session.node().wait_for_line("^ddprun: rank 1 has this terminal: Ctrl-C goes to it");
    session.wait_for_prompt();
    session.type("p 'rank', rank\r");
    session.wait_for_text("('rank', '1')");
    session.node().type("c\r");
    CHECK(session.node().wait_exit() == 0);
    CHECK(session.node().count_lines("^hello from 1") == 1);
    CHECK(session.node().count_lines("from 0|on 0") == 0);
    CHECK(session.log(0) == "hello from 0\nstdin 0\non 0\n");
    CHECK(session.node().terminal_modes() == session.modes);
}

TEST_CASE("after a restart the next generation's rank has the terminal") {
    Session session(std::vector<std::string>{"--max-restarts", "1"},
                    "import os\nn = int(os.environ['TORCHELASTIC_RESTART_COUNT'])\nbreakpoint()\n"
                    "os._exit(0 if n else 3)\n");
    session.wait_for_prompt();
    session.node().type("c\r");
    session.wait_for_prompt();
    session.type("p 'count', n\r");
    session.wait_for_text("('count', 1)");
    session.node().type("c\r");
    CHECK(session.node().wait_exit() == 0);
    CHECK(session.node().terminal_modes() == session.modes);
}

TEST_CASE("torch.distributed.breakpoint() stops its rank, and the others wait") {
    if (!is_torch_python_there()) {
        return;
    }
    Session session(std::vector<std::string>{"--nproc-per-node", "2", "--debug-rank", "0"},
                    "import torch, torch.distributed as dist\ndist.init_process_group('gloo')\n"
                    "total = torch.ones(1)\ndist.breakpoint(0)\ndist.all_reduce(total)\n"
                    "print('total', int(total))\ndist.destroy_process_group()\n");
    session.wait_for_prompt();
    session.type("up\r");
    session.type("!total += 5\r");
    session.node().type("c\r");
    session.node().wait_for_line("^total 7");
    CHECK(session.node().wait_exit() == 0);
    CHECK(session.log(1).find("total 7\n") != std::string::npos);
    CHECK(session.node().terminal_modes() == session.modes);
}
