#include "tests/support/cluster.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <sstream>
#include <system_error>
#include <utility>

#include "tests/support/catch.hpp"
#include "tests/support/places.hpp"

namespace ddprun::test {

namespace {

using Clock = std::chrono::steady_clock;

/// Throws what Catch2 reports as a failed test.
void require_ok(bool is_ok, const std::string& what) {
    if (!is_ok) {
        throw std::system_error(errno, std::generic_category(), what);
    }
}

std::vector<std::string> build_environment(const std::map<std::string, std::string>& overrides) {
    std::vector<std::string> environment;
    for (char** entry = environ; *entry != nullptr; ++entry) {
        const std::string text = *entry;
        const std::string name = text.substr(0, text.find('='));
        // Variables that the tests' own caller or a scheduler has set must not steer the programs
        // under test.
        constexpr std::array kSteering = {"PET_",          "DDPRUN_",
                                          "TORCHELASTIC_", "SLURM",
                                          "PBS_",          "LSB_",
                                          "JOB_ID",        "TRAINING_JOB_NAME",
                                          "AWS_BATCH_",    "OMPI_COMM_WORLD_",
                                          "PMI_SIZE",      "JOB_COMPLETION_INDEX"};
        const bool is_ours =
            std::any_of(kSteering.begin(), kSteering.end(),
                        [&](const char* prefix) { return name.rfind(prefix, 0) == 0; });
        if (!is_ours && overrides.count(name) == 0) {
            environment.push_back(text);
        }
    }
    for (const auto& [name, value] : overrides) {
        environment.push_back(name + "=" + value);
    }
    return environment;
}

/// All processes whose parent this one is, by the fourth field of /proc/<pid>/stat.
std::vector<pid_t> own_children() {
    std::vector<pid_t> children;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
        const pid_t pid = std::atoi(entry.path().filename().c_str());
        const std::string stat = pid > 0 ? read_file(entry.path() / "stat") : "";
        const std::size_t name_end = stat.rfind(')');
        if (name_end != std::string::npos && name_end + 4 < stat.size() &&
            std::atoi(stat.c_str() + name_end + 4) == ::getpid()) {
            children.push_back(pid);
        }
    }
    return children;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
    std::vector<char*> result;
    for (std::string& text : texts) {
        result.push_back(text.data());
    }
    result.push_back(nullptr);
    return result;
}

}  // namespace

TempDir::TempDir() : path_(std::filesystem::temp_directory_path() / "ddprun-test-XXXXXX") {
    require_ok(::mkdtemp(path_.data()) != nullptr, "mkdtemp " + path_);
}

TempDir::~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
}

void touch(const std::string& path) {
    const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
    require_ok(fd.is_open(), "creating " + path);
}

std::string read_file(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

void write_file(const std::string& path, const std::string& text) {
    std::ofstream file(path, std::ios::binary);
    file << text;
    require_ok(file.flush().good(), "writing " + path);
}

std::vector<std::string> list_folder(const std::string& path) {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
        names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
}

int field(const std::string& line, const std::string& name) {
    const std::size_t at = line.find(" " + name + "=");
    return at == std::string::npos ? -1 : std::atoi(line.c_str() + at + name.size() + 2);
}

FreePort::FreePort() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int on = 1;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    require_ok(::bind(socket_.get(), generic, size) == 0, "bind to a free port");
    // Set only now: with it, the kernel may choose a port that another test holds like this.
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    require_ok(::getsockname(socket_.get(), generic, &size) == 0, "getsockname");
    port_ = ntohs(address.sin_port);
    std::filesystem::remove_all(journal_folder());
}

std::string FreePort::endpoint() const {
    return "127.0.0.1:" + std::to_string(port_);
}

std::string FreePort::journal_folder() const {
    return "/var/tmp/ddprun-" + std::to_string(::geteuid()) + "/rendezvous-127.0.0.1-" +
           std::to_string(port_);
}

// --------------------------------------------------------------------------------------- Process

Process::Process(Cluster& cluster, const StartOptions& options)
    : cluster_(cluster), name_(options.name) {
    if (name_.empty()) {
        name_ = std::filesystem::path(options.argv.at(0)).filename().string();
    }
    start(options);
}

void Process::start(const StartOptions& options) {
    std::vector<std::string> arguments = options.argv;
    std::vector<std::string> environment = build_environment(options.env);
    const std::vector<char*> argv = pointers(arguments);
    const std::vector<char*> envp = pointers(environment);
    const std::string cwd = options.cwd.empty() ? cluster_.dir().path() : options.cwd;
    int out[2];
    int err[2];
    if (options.is_on_terminal) {
        winsize window{};
        window.ws_row = 24;
        window.ws_col = 80;
        require_ok(::openpty(&out[0], &out[1], nullptr, nullptr, &window) == 0, "openpty");
        ::fcntl(out[0], F_SETFD, FD_CLOEXEC);
        ::fcntl(out[1], F_SETFD, FD_CLOEXEC);
    } else {
        require_ok(::pipe2(out, O_CLOEXEC) == 0, "pipe2");
    }
    require_ok(::pipe2(err, O_CLOEXEC) == 0, "pipe2");
    out_.fd.reset(out[0]);
    if (options.is_on_terminal) {
        terminal_.reset(::fcntl(out[0], F_DUPFD_CLOEXEC, 3));
    }
    err_.fd.reset(err[0]);
    const UniqueFd out_write(out[1]);
    const UniqueFd err_write(err[1]);
    require_ok(::fcntl(out_.fd.get(), F_SETFL, O_NONBLOCK) == 0 &&
                   ::fcntl(err_.fd.get(), F_SETFL, O_NONBLOCK) == 0,
               "fcntl");
    pid_ = ::fork();
    require_ok(pid_ >= 0, "fork");
    if (pid_ == 0) {
        // Its own session: a Ctrl-C at the tests' terminal is the tests' business.
        ::setsid();
        const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
        ::dup2(null, 0);
        if (options.is_on_terminal) {
            ::ioctl(out_write.get(), TIOCSCTTY, 0);
            ::dup2(out_write.get(), 0);
        }
        ::dup2(out_write.get(), 1);
        ::dup2(options.is_merged || options.is_on_terminal ? out_write.get() : err_write.get(), 2);
        sigset_t none;
        ::sigemptyset(&none);
        ::sigprocmask(SIG_SETMASK, &none, nullptr);
        if (::chdir(cwd.c_str()) == 0) {
            ::execve(argv[0], argv.data(), envp.data());
        }
        const std::string text = "cannot run " + arguments[0] + "\n";
        static_cast<void>(!::write(2, text.data(), text.size()));
        ::_exit(127);
    }
}

void Process::signal(int number) const {
    REQUIRE_FALSE(has_ended_);
    REQUIRE(::kill(pid_, number) == 0);
}

void Process::type(std::string_view text) const {
    REQUIRE(::write(out_.fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()));
}

void Process::resize(int rows, int columns) const {
    winsize window{};
    window.ws_row = static_cast<unsigned short>(rows);
    window.ws_col = static_cast<unsigned short>(columns);
    REQUIRE(::ioctl(out_.fd.get(), TIOCSWINSZ, &window) == 0);
}

std::string Process::terminal_modes() const {
    termios modes{};
    REQUIRE(::tcgetattr(terminal_.get(), &modes) == 0);
    std::string text;
    for (const tcflag_t flags : {modes.c_iflag, modes.c_oflag, modes.c_cflag, modes.c_lflag}) {
        text += std::to_string(flags) + " ";
    }
    return text + std::string(std::begin(modes.c_cc), std::end(modes.c_cc));
}

void Process::read(Stream& stream) {
    std::array<char, 65536> buffer;
    for (;;) {
        const ssize_t count = ::read(stream.fd.get(), buffer.data(), buffer.size());
        if (count < 0 && errno == EINTR) {
            continue;
        }
        if (count < 0 && errno != EIO) {
            return;
        }
        if (count <= 0) {  // EIO: no process has the terminal any more
            stream.fd.reset();
            return;
        }
        stream.all.append(buffer.data(), static_cast<std::size_t>(count));
        for (std::size_t end = stream.all.find('\n', stream.line_start); end != std::string::npos;
             end = stream.all.find('\n', stream.line_start)) {
            lines_.push_back(stream.all.substr(stream.line_start, end - stream.line_start));
            stream.line_start = end + 1;
        }
    }
}

std::string Process::wait_for_line(const std::string& pattern, std::size_t from) {
    const std::regex regex(pattern);
    std::string found;
    cluster_.wait_until(name_ + " says /" + pattern + "/", [&] {
        for (; from < lines_.size(); ++from) {
            if (std::regex_search(lines_[from], regex)) {
                found = lines_[from];
                return true;
            }
        }
        if (has_ended_ && !out_.fd.is_open() && !err_.fd.is_open()) {
            cluster_.fail(name_ + " ended without saying /" + pattern + "/");
        }
        return false;
    });
    return found;
}

void Process::wait_for_lines(const std::string& pattern, std::size_t count) {
    std::size_t from = 0;
    const std::regex regex(pattern);
    std::size_t found = 0;
    cluster_.wait_until(name_ + " says /" + pattern + "/ " + std::to_string(count) + " times", [&] {
        for (; from < lines_.size(); ++from) {
            found += std::regex_search(lines_[from], regex) ? 1 : 0;
        }
        return found >= count;
    });
}

std::size_t Process::count_lines(const std::string& pattern) const {
    const std::regex regex(pattern);
    std::size_t found = 0;
    for (const std::string& line : lines_) {
        found += std::regex_search(line, regex) ? 1 : 0;
    }
    return found;
}

int Process::wait_exit() {
    cluster_.wait_until(name_ + " ends", [&] { return has_ended_; });
    for (Stream* stream : {&out_, &err_}) {
        if (stream->fd.is_open()) {
            read(*stream);
        }
    }
    return WIFEXITED(status_) ? WEXITSTATUS(status_) : -WTERMSIG(status_);
}

std::string Process::text() const {
    std::string all;
    for (const std::string& line : lines_) {
        all += line + "\n";
    }
    return all;
}

// --------------------------------------------------------------------------------------- Cluster

Cluster::Cluster() {
    sigset_t child;
    ::sigemptyset(&child);
    ::sigaddset(&child, SIGCHLD);
    require_ok(::sigprocmask(SIG_BLOCK, &child, nullptr) == 0, "sigprocmask");
    child_signals_.reset(::signalfd(-1, &child, SFD_NONBLOCK | SFD_CLOEXEC));
    require_ok(child_signals_.is_open(), "signalfd");
    require_ok(::prctl(PR_SET_CHILD_SUBREAPER, 1) == 0, "becoming a subreaper");
    for (const char* folder : {"home", "tmp", "logs"}) {
        std::filesystem::create_directory(dir_ / folder);
        std::filesystem::permissions(dir_ / folder, std::filesystem::perms::owner_all);
    }
}

Cluster::~Cluster() {
    kill_everything();
}

void Cluster::kill_everything() {
    // A process that loses its parent is adopted here, and killed in the next turn.
    for (reap(); has_children_; reap()) {
        for (const pid_t pid : own_children()) {
            ::kill(pid, SIGKILL);
        }
        siginfo_t ended{};
        ::waitid(P_ALL, 0, &ended, WEXITED | WNOWAIT);
    }
}

void Cluster::reap() {
    for (;;) {
        int status = 0;
        const pid_t pid = ::waitpid(-1, &status, WNOHANG);
        if (pid < 0 && errno == EINTR) {
            continue;
        }
        has_children_ = pid == 0;
        if (pid <= 0) {
            return;
        }
        for (const std::unique_ptr<Process>& process : processes_) {
            if (process->pid_ == pid && !process->has_ended_) {
                process->status_ = status;
                process->has_ended_ = true;
            }
        }
    }
}

Process& Cluster::start(const StartOptions& options) {
    StartOptions complete = options;
    complete.env.emplace("HOME", dir_ / "home");
    complete.env.emplace("TMPDIR", dir_ / "tmp");
    complete.env.emplace("OMP_NUM_THREADS", "1");
    has_children_ = true;
    auto* process = new Process(*this, complete);  // tidy: allow new: private constructor
    processes_.push_back(std::unique_ptr<Process>(process));
    return *processes_.back();
}

Process& Cluster::start_ddprun(const std::vector<std::string>& args,
                               const std::map<std::string, std::string>& env) {
    StartOptions options;
    options.argv = {bin_dir() + "/ddprun", "--log-dir", dir_ / "logs"};
    options.argv.insert(options.argv.end(), args.begin(), args.end());
    options.env = env;
    options.name = "ddprun " + std::to_string(processes_.size());
    return start(options);
}

Cluster::Daemon Cluster::start_daemon(const std::vector<std::string>& args) {
    StartOptions options;
    options.argv = {bin_dir() + "/ddprun-rendezvous", "--port", "0"};
    options.argv.insert(options.argv.end(), args.begin(), args.end());
    Process& process = start(options);
    const std::string line = process.wait_for_line("listening on 127\\.0\\.0\\.1:[0-9]+");
    std::smatch match;
    std::regex_search(line, match, std::regex("127\\.0\\.0\\.1:[0-9]+"));
    return {process, match.str()};
}

std::string Cluster::program(const std::string& name) {
    return bin_dir() + "/" + name;
}

pid_t Cluster::daemon_at(std::uint16_t port) {
    const std::string state = "/rendezvous-127.0.0.1-" + std::to_string(port);
    for (const std::string& entry : list_folder("/proc")) {
        if (entry.find_first_not_of("0123456789") != std::string::npos) {
            continue;
        }
        // Arguments end with NUL bytes.
        const std::string line = read_file("/proc/" + entry + "/cmdline");
        if (line.find("ddprun-rendezvous") != std::string::npos &&
            line.find(state + '\0') != std::string::npos) {
            return static_cast<pid_t>(std::stol(entry));
        }
    }
    return 0;
}

std::string Cluster::worker() {
    return bin_dir() + "/../tests/ddprun_test_worker";
}

bool Cluster::turn(Clock::time_point deadline, int extra) {
    std::vector<pollfd> polled;
    for (const std::unique_ptr<Process>& process : processes_) {
        polled.push_back({process->out_.fd.get(), POLLIN, 0});
        polled.push_back({process->err_.fd.get(), POLLIN, 0});
    }
    polled.push_back({child_signals_.get(), POLLIN, 0});
    polled.push_back({extra, POLLIN, 0});
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) {
        return false;
    }
    if (::poll(polled.data(), polled.size(), static_cast<int>(left)) < 0) {
        require_ok(errno == EINTR, "poll");
        return true;
    }
    for (std::size_t i = 0; i < processes_.size(); ++i) {
        Process& process = *processes_[i];
        if (polled[2 * i].revents != 0) {
            process.read(process.out_);
        }
        if (polled[2 * i + 1].revents != 0) {
            process.read(process.err_);
        }
    }
    signalfd_siginfo signal{};
    while (::read(child_signals_.get(), &signal, sizeof(signal)) > 0) {}
    reap();
    return true;
}

void Cluster::wait_until(const std::string& what, const std::function<bool()>& is_true) {
    const Clock::time_point deadline = Clock::now() + kDeadline;
    while (!is_true()) {
        if (!turn(deadline)) {
            fail("still waiting after " + std::to_string(kDeadline.count()) + " s until " + what);
        }
    }
}

void Cluster::wait_all_gone() {
    reap();
    wait_until("every program and all it has started are gone", [&] { return !has_children_; });
}

UniqueFd Cluster::watch(pid_t pid) {
    UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    require_ok(pidfd.is_open(), "watching process " + std::to_string(pid));
    return pidfd;
}

void Cluster::wait_gone(const UniqueFd& watched) {
    const Clock::time_point deadline = Clock::now() + kDeadline;
    pollfd polled{watched.get(), POLLIN, 0};
    while (::poll(&polled, 1, 0) == 0) {
        if (!turn(deadline, watched.get())) {
            fail("a process that should be gone still runs");
        }
    }
}

/// As wait_exit() would say it.
static std::string end_text(int status) {
    return std::to_string(WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
}

void Cluster::fail(const std::string& what) const {
    std::ostringstream text;
    text << what << "\n";
    for (const std::unique_ptr<Process>& process : processes_) {
        text << "---- " << process->name_ << " (pid " << process->pid_ << ", "
             << (process->has_ended_ ? "ended: " + end_text(process->status_) : "runs") << ")\n"
             << process->text();
    }
    FAIL(text.str());
    std::abort();  // FAIL throws
}

}  // namespace ddprun::test
