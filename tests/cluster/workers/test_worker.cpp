// The scripted worker of the cluster tests: does what its arguments say, in their order.
//
//   conditions, which hold for the actions after them until --always:
//     --when-rank N  --when-generation N  --when-restart N  --when-group-rank N
//     --before-generation N       only in generations below N
//     --unless-exists PATH        only if no such file exists when the action's turn comes
//     --always
//   actions:
//     --print                     one line "worker rank=… world=… …" (see print_place) on stdout
//     --say TEXT                  a line on stdout        --complain TEXT   a line on stderr
//     --write TEXT                TEXT without a line end on stdout
//     --flood BYTES               that many bytes of "x" lines on stdout
//     --touch PATH                creates an empty file
//     --wait-for-file PATH        until it exists
//     --burn-until PATH           the same, and uses a whole core meanwhile
//     --pause MS                  does nothing for so long
//     --thread NAME               starts a thread of that name that waits for ever
//     --child                     starts a process that waits for ever, as a data loader would
//     --ignore-sigterm            from here on
//     --exit-on-signal N CODE     from here on: exit with CODE on signal N
//     --tell-signal N             from here on: a line "got signal N" instead of signal N
//     --variable KEY              one line KEY=value of the environment
//     --attach-page               reads the page shared with the agent from here on, and says so
//     --progress N                reports through the page that step N is done
//     --tell-checkpoints PATH     reports through the page where checkpoints are
//     --wait-until-in-memory PATH until the kernel has all of that file in memory
//     --leave-when-asked          until the page asks: says "asked signal=…", exits with 75
//     --wait-for-isolation 0|1    until page and clock say that nothing (1) or something (0) may be
//                                 published
//     --flight-recorder SIZE      has a pipe as PyTorch's flight recorder, and writes so many bytes
//                                 when a byte comes; 0: nothing
//     --daemonize                 leaves a descendant behind in a session of its own that only
//                                 SIGKILL ends; says "descendant pid=…"
//     --error-file TEXT           writes TEXT to $TORCHELASTIC_ERROR_FILE
//     --crash N                   dies of signal N
//     --exit-code N               exits
//     --hang                      waits for a signal for ever
//
// In texts and paths {rank}, {local_rank}, {generation} and {pid} are replaced. After the last
// action it exits 0.

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/page_cache.hpp"
#include "worker_runtime/contract/exit_codes.hpp"
#include "worker_runtime/env/environment.hpp"
#include "worker_runtime/env/page.hpp"

namespace {

std::string variable(const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
}

int number(const std::string& text) {
    return text.empty() ? -1 : std::atoi(text.c_str());
}

std::string expand(std::string text) {
    const std::map<std::string, std::string> macros{{"{rank}", variable("RANK")},
                                                    {"{local_rank}", variable("LOCAL_RANK")},
                                                    {"{generation}", variable("DDPRUN_GENERATION")},
                                                    {"{pid}", std::to_string(::getpid())}};
    for (const auto& [macro, value] : macros) {
        for (std::size_t at = text.find(macro); at != std::string::npos;
             at = text.find(macro, at + value.size())) {
            text.replace(at, macro.size(), value);
        }
    }
    return text;
}

void write_all(int fd, std::string_view text) {
    while (!text.empty()) {
        const ssize_t count = ::write(fd, text.data(), text.size());
        if (count < 0) {
            ::_exit(120);
        }
        text.remove_prefix(static_cast<std::size_t>(count));
    }
}

void print_place() {
    std::string line = "worker";
    const std::array<std::array<const char*, 2>, 14> fields{{
        {"rank", "RANK"},
        {"world", "WORLD_SIZE"},
        {"local_rank", "LOCAL_RANK"},
        {"local_world", "LOCAL_WORLD_SIZE"},
        {"group_rank", "GROUP_RANK"},
        {"group_world", "GROUP_WORLD_SIZE"},
        {"generation", "DDPRUN_GENERATION"},
        {"restarts", "TORCHELASTIC_RESTART_COUNT"},
        {"max_restarts", "TORCHELASTIC_MAX_RESTARTS"},
        {"run", "TORCHELASTIC_RUN_ID"},
        {"agent_store", "TORCHELASTIC_USE_AGENT_STORE"},
        {"master", "MASTER_ADDR"},
        {"port", "MASTER_PORT"},
        {"target", "DDPRUN_TARGET_WORLD_SIZE"},
    }};
    for (const auto& [name, key] : fields) {
        line += std::string(" ") + name + "=" + variable(key);
    }
    line += " pid=" + std::to_string(::getpid()) + " parent=" + std::to_string(::getppid()) + "\n";
    write_all(1, line);
}

/// Prints the kinds of stdout and stderr, and whether there is a controlling terminal.
void say_window() {
    winsize window{};
    static_cast<void>(::ioctl(1, TIOCGWINSZ, &window));
    const int controlling = ::open("/dev/tty", O_RDWR | O_CLOEXEC);
    std::string line = "window";
    for (const auto& [name, value] :
         std::array<std::pair<const char*, int>, 5>{{{"out", ::isatty(1)},
                                                     {"err", ::isatty(2)},
                                                     {"controlling", controlling >= 0 ? 1 : 0},
                                                     {"rows", window.ws_row},
                                                     {"columns", window.ws_col}}}) {
        line += std::string(" ") + name + "=" + std::to_string(value);
    }
    write_all(1, line + "\n");
    ::close(controlling);
}

void say_window_on_change() {
    struct sigaction action {};
    action.sa_handler = [](int /*signal*/) { say_window(); };
    action.sa_flags = SA_RESTART;
    ::sigaction(SIGWINCH, &action, nullptr);
}

void wait_for_file(const std::string& path) {
    const std::string folder = std::filesystem::path(path).parent_path().string();
    const int watch = ::inotify_init1(IN_CLOEXEC);
    if (watch < 0 || ::inotify_add_watch(watch, folder.empty() ? "." : folder.c_str(),
                                         IN_CREATE | IN_MOVED_TO) < 0) {
        write_all(2, "cannot watch " + folder + "\n");
        ::_exit(121);
    }
    // Watched first and checked afterwards: no creation is missed.
    while (::access(path.c_str(), F_OK) != 0) {
        std::array<char, sizeof(inotify_event) + NAME_MAX + 1> event;
        static_cast<void>(!::read(watch, event.data(), event.size()));
    }
    ::close(watch);
}

void burn_until(const std::string& path) {
    while (::access(path.c_str(), F_OK) != 0) {}
}

std::array<int, 65> exit_codes{};

void on_signal(int signal) {
    ::_exit(exit_codes.at(static_cast<std::size_t>(signal)));
}

void exit_on_signal(int signal, int code) {
    exit_codes.at(static_cast<std::size_t>(signal)) = code;
    struct sigaction action {};
    action.sa_handler = on_signal;
    ::sigaction(signal, &action, nullptr);
}

void tell_signal(int signal) {
    struct sigaction action {};
    action.sa_handler = [](int number) {
        std::array<char, 16> line{"got signal ??\n"};
        line[11] = static_cast<char>('0' + number / 10);
        line[12] = static_cast<char>('0' + number % 10);
        write_all(1, std::string_view(line.data(), 14));
    };
    action.sa_flags = SA_RESTART;
    ::sigaction(signal, &action, nullptr);
}

ddprun::worker::Page page;

void attach_page() {
    const auto place = ddprun::worker::read_environment();
    if (!place) {
        write_all(2, place.error().what + "\n");
        ::_exit(126);
    }
    auto opened = ddprun::worker::Page::open(place->page, place->generation, place->slot,
                                             place->local_world_size);
    if (!opened) {
        write_all(2, opened.error().what + "\n");
        ::_exit(126);
    }
    page = std::move(*opened);
    write_all(1, "attached local_rank=" + variable("LOCAL_RANK") + "\n");
}

/// A change of the page wakes no thread: a training loop reads the page at every step.
void step_until(const std::function<bool()>& is_true) {
    while (!is_true()) {
        ::poll(nullptr, 0, 5);
    }
}

[[noreturn]] void leave_when_asked() {
    step_until([] { return page.stop_request().has_value(); });
    write_all(1, "asked signal=" + std::to_string(page.stop_request()->signal) + "\n");
    ::_exit(ddprun::kExitDrained);
}

[[noreturn]] void hang() {
    for (;;) {
        ::pause();
    }
}

void start_thread(const std::string& name) {
    std::thread thread(hang);
    ::pthread_setname_np(thread.native_handle(), name.c_str());
    thread.detach();
}

void start_child() {
    const int pid = ::fork();
    if (pid == 0) {
        hang();
    }
    write_all(1, "child pid=" + std::to_string(pid) + "\n");
}

void daemonize() {
    std::array<int, 2> started{};
    if (::pipe2(started.data(), O_CLOEXEC) != 0) {
        ::_exit(122);
    }
    if (::fork() == 0) {
        ::setsid();
        if (::fork() != 0) {
            ::_exit(0);
        }
        for (int signal = 1; signal < 32; ++signal) {
            ::signal(signal, SIG_IGN);
        }
        write_all(1, "descendant pid=" + std::to_string(::getpid()) + "\n");
        write_all(started[1], "x");
        hang();
    }
    ::close(started[1]);
    char byte = 0;
    static_cast<void>(!::read(started[0], &byte, 1));
    ::close(started[0]);
}

void create(const std::string& path, std::string_view text) {
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0) {
        write_all(2, "cannot create " + path + "\n");
        ::_exit(123);
    }
    write_all(fd, text);
    ::close(fd);
}

void crash(int signal) {
    ::signal(signal, SIG_DFL);
    ::raise(signal);
    ::_exit(124);
}

/// Acts like a flight recorder that PyTorch started with these variables.
void record_flight(std::size_t size) {
    const std::string pipe =
        variable("TORCH_NCCL_DEBUG_INFO_PIPE_FILE") + variable("RANK") + ".pipe";
    std::string record = variable("TORCH_FR_DUMP_TEMP_FILE");
    if (record.empty()) {
        const std::string folder = variable("HOME") + "/.cache/torch";
        std::filesystem::create_directories(folder);
        record = folder + "/comm_lib_trace_rank_";
    }
    record += variable("RANK");
    ::unlink(pipe.c_str());
    // Both ends: reading waits for bytes, not for a process to open the FIFO for writing.
    const int fd =
        ::mkfifo(pipe.c_str(), 0600) == 0 ? ::open(pipe.c_str(), O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) {
        write_all(2, "cannot make " + pipe + "\n");
        ::_exit(127);
    }
    std::thread([fd, record, size] {
        char byte = 0;
        while (::read(fd, &byte, 1) == 1) {
            // PyTorch looks once a second whether it is asked.
            ::poll(nullptr, 0, 300);
            if (size > 0) {
                create(record, std::string(size - 1, 'r') + "\n");
            }
        }
    }).detach();
}

/// A condition or an action, and how many arguments it takes.
struct Word {
    std::size_t arguments = 0;
    std::function<void(const std::vector<std::string>&)> act;
};

class Script {
public:
    explicit Script(std::vector<std::string> words) : words_(std::move(words)) {}

    void run() {
        for (std::size_t at = 0; at < words_.size();) {
            const std::string word = words_[at++];
            const bool is_condition = add_condition(word, at);
            if (is_condition) {
                continue;
            }
            const auto found = actions().find(word);
            if (found == actions().end() || at + found->second.arguments > words_.size()) {
                write_all(2, "test worker: cannot do " + word + "\n");
                ::_exit(125);
            }
            std::vector<std::string> arguments;
            for (std::size_t i = 0; i < found->second.arguments; ++i) {
                arguments.push_back(expand(words_[at++]));
            }
            if (holds()) {
                found->second.act(arguments);
            }
        }
    }

private:
    using Condition = std::function<bool()>;

    bool add_condition(const std::string& word, std::size_t& at) {
        static const std::map<std::string, const char*> equal{
            {"--when-rank", "RANK"},
            {"--when-generation", "DDPRUN_GENERATION"},
            {"--when-restart", "TORCHELASTIC_RESTART_COUNT"},
            {"--when-group-rank", "GROUP_RANK"}};
        if (word == "--always") {
            conditions_.clear();
        } else if (const auto found = equal.find(word); found != equal.end()) {
            const bool is_so = number(variable(found->second)) == number(words_.at(at++));
            conditions_.push_back([is_so] { return is_so; });
        } else if (word == "--before-generation") {
            const bool is_so = number(variable("DDPRUN_GENERATION")) < number(words_.at(at++));
            conditions_.push_back([is_so] { return is_so; });
        } else if (word == "--unless-exists") {
            const std::string path = expand(words_.at(at++));
            conditions_.push_back([path] { return ::access(path.c_str(), F_OK) != 0; });
        } else {
            return false;
        }
        return true;
    }

    bool holds() const {
        for (const Condition& condition : conditions_) {
            if (!condition()) {
                return false;
            }
        }
        return true;
    }

    static const std::map<std::string, Word>& actions() {
        using Arguments = const std::vector<std::string>&;
        static const std::map<std::string, Word> all{
            {"--print", {0, [](Arguments) { print_place(); }}},
            {"--say", {1, [](Arguments a) { write_all(1, a[0] + "\n"); }}},
            {"--complain", {1, [](Arguments a) { write_all(2, a[0] + "\n"); }}},
            {"--write", {1, [](Arguments a) { write_all(1, a[0]); }}},
            {"--say-window", {0, [](Arguments) { say_window(); }}},
            {"--say-window-on-change", {0, [](Arguments) { say_window_on_change(); }}},
            {"--alternate",
             {1,
              [](Arguments a) {
                  for (int i = 0; i < number(a[0]); ++i) {
                      write_all(1 + i % 2, std::to_string(i) + "\n");
                  }
              }}},
            {"--flood",
             {1,
              [](Arguments a) {
                  const std::string line = std::string(99, 'x') + "\n";
                  for (long left = std::atol(a[0].c_str()); left > 0; left -= 100) {
                      write_all(1, line);
                  }
              }}},
            {"--touch", {1, [](Arguments a) { create(a[0], ""); }}},
            {"--wait-for-file", {1, [](Arguments a) { wait_for_file(a[0]); }}},
            {"--burn-until", {1, [](Arguments a) { burn_until(a[0]); }}},
            {"--pause", {1, [](Arguments a) { ::poll(nullptr, 0, number(a[0])); }}},
            {"--thread", {1, [](Arguments a) { start_thread(a[0]); }}},
            {"--child", {0, [](Arguments) { start_child(); }}},
            {"--ignore-sigterm", {0, [](Arguments) { ::signal(SIGTERM, SIG_IGN); }}},
            {"--exit-on-signal",
             {2, [](Arguments a) { exit_on_signal(number(a[0]), number(a[1])); }}},
            {"--tell-signal", {1, [](Arguments a) { tell_signal(number(a[0])); }}},
            {"--variable",
             {1, [](Arguments a) { write_all(1, a[0] + "=" + variable(a[0].c_str()) + "\n"); }}},
            {"--attach-page", {0, [](Arguments) { attach_page(); }}},
            {"--progress", {1, [](Arguments a) { page.tell_progress(number(a[0])); }}},
            {"--tell-checkpoints", {1, [](Arguments a) { page.tell_checkpoints(a[0]); }}},
            {"--wait-until-in-memory",
             {1,
              [](Arguments a) {
                  step_until([&] { return ddprun::test::share_in_memory(a[0]) == 1; });
              }}},
            {"--leave-when-asked", {0, [](Arguments) { leave_when_asked(); }}},
            {"--wait-for-isolation",
             {1,
              [](Arguments a) {
                  const bool is_wanted = a[0] == "1";
                  step_until([is_wanted] { return page.is_isolated() == is_wanted; });
              }}},
            {"--flight-recorder",
             {1, [](Arguments a) { record_flight(static_cast<std::size_t>(number(a[0]))); }}},
            {"--daemonize", {0, [](Arguments) { daemonize(); }}},
            {"--error-file",
             {1, [](Arguments a) { create(variable("TORCHELASTIC_ERROR_FILE"), a[0]); }}},
            {"--crash", {1, [](Arguments a) { crash(number(a[0])); }}},
            {"--exit-code", {1, [](Arguments a) { ::_exit(number(a[0])); }}},
            {"--hang", {0, [](Arguments) { hang(); }}},
        };
        return all;
    }

    std::vector<std::string> words_;
    std::vector<Condition> conditions_;
};

}  // namespace

int main(int argc, char** argv) {
    Script(std::vector<std::string>(argv + 1, argv + argc)).run();
    return 0;
}
