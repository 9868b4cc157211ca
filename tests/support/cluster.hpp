#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/os/unique_fd.hpp"

/// Support for tests that run real programs. Everything waits for events (poll), never for time;
/// a deadline only ends a test that has gone wrong, and prints what all programs have said.
namespace ddprun::test {

/// The longest wait before its test fails. Generous: machines are shared.
inline constexpr std::chrono::seconds kDeadline{60};

/// A folder of its own, deleted with everything in it at the end.
class TempDir {
public:
    TempDir();
    ~TempDir();
    TempDir(const TempDir&) = delete;
    TempDir& operator=(const TempDir&) = delete;

    [[nodiscard]] const std::string& path() const { return path_; }
    [[nodiscard]] std::string operator/(const std::string& name) const {
        return path_ + "/" + name;
    }

private:
    std::string path_;
};

/// `NAME=` of a test worker's --print line, as a number; -1 if it is not there.
[[nodiscard]] int field(const std::string& line, const std::string& name);

/// Creates an empty file, for workers that wait for it.
void touch(const std::string& path);

/// The content of a file; empty if there is none.
[[nodiscard]] std::string read_file(const std::string& path);

void write_file(const std::string& path, const std::string& text);

/// The names in a folder, sorted.
[[nodiscard]] std::vector<std::string> list_folder(const std::string& path);

/// A TCP port on 127.0.0.1 that no other process uses. The socket stays bound, without listening,
/// so that the kernel gives the port to no process that asks for any. A server that sets
/// SO_REUSEADDR (as ours do) can still bind it and listen.
class FreePort {
public:
    FreePort();

    [[nodiscard]] std::uint16_t port() const { return port_; }
    [[nodiscard]] std::string endpoint() const;
    /// The folder in which the daemon that a ddprun starts at this port keeps its runs. At first
    /// there is none: the daemon would go on with the runs of one that an earlier test has killed.
    [[nodiscard]] std::string journal_folder() const;

private:
    UniqueFd socket_;
    std::uint16_t port_ = 0;
};

struct StartOptions {
    std::vector<std::string> argv;           ///< argv[0] is a path
    std::map<std::string, std::string> env;  ///< over the cluster's environment
    std::string cwd;                         ///< empty: the cluster's folder
    std::string name;                        ///< for messages; empty: argv[0]'s last part
    bool is_merged = false;                  ///< stderr is stdout's pipe, as behind `2>&1`
    /// stdin, stdout and stderr are a terminal of its own, 24 lines of 80 characters.
    bool is_on_terminal = false;
};

class Cluster;

/// A program under test. Its standard input is /dev/null unless it is on a terminal, and it has a
/// session of its own.
class Process {
public:
    ~Process() = default;
    Process(const Process&) = delete;
    Process& operator=(const Process&) = delete;

    [[nodiscard]] pid_t pid() const { return pid_; }

    /// The first line of stdout or stderr, from line `from` on, in which the regular expression
    /// `pattern` is found. Fails the test if the process ends without it.
    std::string wait_for_line(const std::string& pattern, std::size_t from = 0);

    /// Waits until `count` lines have `pattern`.
    void wait_for_lines(const std::string& pattern, std::size_t count);

    [[nodiscard]] std::size_t count_lines(const std::string& pattern) const;

    /// How many lines there are by now: a `from` for what comes later.
    [[nodiscard]] std::size_t line_count() const { return lines_.size(); }

    /// Waits for its end and for what it wrote; its exit code, or -signal.
    int wait_exit();

    [[nodiscard]] bool is_running() const { return !has_ended_; }

    void signal(int number) const;

    /// On a terminal: types `text`; gives its window another size.
    void type(std::string_view text) const;
    void resize(int rows, int columns) const;

    /// The modes of its terminal, to be compared, also after its end.
    [[nodiscard]] std::string terminal_modes() const;

    /// Everything it has written, both streams, in order of arrival; incomplete lines excluded.
    [[nodiscard]] std::string text() const;

    [[nodiscard]] const std::string& out() const { return out_.all; }
    [[nodiscard]] const std::string& err() const { return err_.all; }

private:
    friend class Cluster;

    struct Stream {
        UniqueFd fd;
        std::string all;
        std::size_t line_start = 0;
    };

    Process(Cluster& cluster, const StartOptions& options);
    void start(const StartOptions& options);
    void read(Stream& stream);

    Cluster& cluster_;
    std::string name_;
    pid_t pid_ = -1;
    Stream out_;
    Stream err_;
    UniqueFd terminal_;  ///< the same as out_'s, and stays open
    std::vector<std::string> lines_;
    bool has_ended_ = false;
    int status_ = 0;
};

/// The programs of one test, their folder, and the proof that nothing of them is left: the test's
/// process adopts every orphan (it is a subreaper), so what has no child has no survivor. Kills
/// whatever is left at its end. One at a time, one thread; every wait reads the output of all
/// programs, so that none is held up by a full pipe.
class Cluster {
public:
    Cluster();
    ~Cluster();
    Cluster(const Cluster&) = delete;
    Cluster& operator=(const Cluster&) = delete;

    [[nodiscard]] const TempDir& dir() const { return dir_; }

    /// Starts a program with HOME and TMPDIR in the cluster's folder, and without what the tests'
    /// own caller has set for ddprun or torchrun.
    Process& start(const StartOptions& options);

    /// Starts ddprun with `args`, logs in `<dir>/logs`.
    Process& start_ddprun(const std::vector<std::string>& args,
                          const std::map<std::string, std::string>& env = {});

    /// Starts ddprun-rendezvous on a free loopback port; returns it and its endpoint.
    struct Daemon {
        Process& process;
        std::string endpoint;
    };
    Daemon start_daemon(const std::vector<std::string>& args = {});

    /// Waits until `is_true()`, looking again after every event; fails the test, saying `what`,
    /// after kDeadline.
    void wait_until(const std::string& what, const std::function<bool()>& is_true);

    /// Waits until every program that was started and all they have ever started are gone: workers,
    /// their daemonised descendants, keepers, rendezvous daemons. Call it when all should end.
    void wait_all_gone();

    /// A handle on a living process that is not ours to reap, say a worker, for wait_gone().
    [[nodiscard]] static UniqueFd watch(pid_t pid);

    /// Waits until the process of a watch() has ended.
    void wait_gone(const UniqueFd& watched);

    /// Path of a program that users run.
    [[nodiscard]] static std::string program(const std::string& name);

    /// The daemon that a ddprun has started for `port` of 127.0.0.1; 0 if none lives.
    [[nodiscard]] static pid_t daemon_at(std::uint16_t port);

    /// Path of the scripted worker (tests/cluster/workers/test_worker.cpp).
    [[nodiscard]] static std::string worker();

private:
    friend class Process;

    /// One poll over everything and over `extra`; false once `deadline` has passed.
    bool turn(std::chrono::steady_clock::time_point deadline, int extra = -1);
    void reap();
    void kill_everything();
    [[noreturn]] void fail(const std::string& what) const;

    TempDir dir_;
    UniqueFd child_signals_;
    bool has_children_ = false;
    std::vector<std::unique_ptr<Process>> processes_;
};

}  // namespace ddprun::test
