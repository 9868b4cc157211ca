#include "worker_runtime/env/standby.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/instant.hpp"
#include "base/limits.hpp"
#include "base/os/file_identity.hpp"
#include "base/os/own_variable.hpp"
#include "base/os/read_files.hpp"
#include "base/os/unique_fd.hpp"
#include "base/whole_number.hpp"
#include "worker_runtime/contract/standby.hpp"
#include "worker_runtime/contract/worker_environment.hpp"
#include "worker_runtime/env/process_title.hpp"

namespace ddprun::worker {

namespace {

constexpr const char* kOomScore = "/proc/self/oom_score_adj";
constexpr std::string_view kKilledFirst = "1000";  ///< a standby can be replaced
/// The least time between two checks of the same files.
constexpr std::chrono::seconds kLookedAt{1};

std::string variable(const WorkerVariable& name) {
    return own_variable(std::string(name.key).c_str());
}

void forget(const WorkerVariable& name) {
    unsetenv(std::string(name.key).c_str());
}

/// The program itself comes first in the list of what the process has loaded.
bool is_in_program(const void* place) {
    Dl_info found{};
    void* object = nullptr;
    return dladdr1(place, &found, &object, RTLD_DL_LINKMAP) != 0 &&
           static_cast<const link_map*>(object)->l_prev == nullptr;
}

/// Returns the score before; empty if it cannot be changed.
std::string exchange_oom_score(std::string_view score) {
    std::string before = read_whole(kOomScore).value_or("");
    const UniqueFd file(open(kOomScore, O_WRONLY | O_CLOEXEC));
    const bool is_done = file.is_open() && write(file.get(), score.data(), score.size()) ==
                                               static_cast<ssize_t>(score.size());
    return is_done ? before : std::string();
}

/// This process's part of the memory in use, with its share of what is shared. 0: not known.
std::uint64_t memory_kib() {
    std::ifstream words("/proc/self/smaps_rollup");
    std::uint64_t kib = 0;
    for (std::string word; kib == 0 && words >> word;) {
        if (word == "Pss:") {
            words >> kib;
        }
    }
    return kib;
}

using Files = std::map<std::string, std::string>;

/// The program and its libraries, with what they are; one that has gone is "".
Files mapped_files() {
    Files files;
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
        const std::size_t at = line.find('/');
        const std::string path = at == std::string::npos ? std::string() : line.substr(at);
        const bool is_memory = path.starts_with("/dev/") || path.starts_with("/memfd:") ||
                               path.starts_with("/anon_hugepage");
        constexpr std::size_t kSharing = 4;  // behind rwx
        const bool is_shared = line.substr(line.find(' ') + kSharing, 1) == "s";
        if (!path.empty() && !is_memory && !is_shared) {
            // A replaced file has a name that does not exist: the kernel adds "(deleted)".
            files.emplace(path, file_identity(path));
        }
    }
    // The dynamic linker may have come to a library by a link, which can lead elsewhere later.
    dl_iterate_phdr(
        [](dl_phdr_info* library, std::size_t /*size*/, void* to) {
            const std::string path = library->dlpi_name;
            if (path.starts_with('/')) {
                static_cast<Files*>(to)->emplace(path, file_identity(path));
            }
            return 0;
        },
        &files);
    return files;
}

/// Says what `file` is if a worker without its place may not have it open; empty: it may.
std::string held_by(int file) {
    std::array<char, 4096> target{};
    const ssize_t length =
        readlink(fmt::format("/proc/self/fd/{}", file).c_str(), target.data(), target.size() - 1);
    const std::string_view text(target.data(), length < 0 ? 0 : static_cast<std::size_t>(length));
    if (text.starts_with("socket:")) {
        return "a socket";
    }
    for (const std::string_view device : {"/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/accel"}) {
        if (text.starts_with(device)) {
            return std::string(text);
        }
    }
    const bool is_written = (fcntl(file, F_GETFL) & O_ACCMODE) != O_RDONLY;
    return text.starts_with('/') && is_written && text != "/dev/null"
               ? fmt::format("{} for writing", text)
               : std::string();
}

/// The numbers that are the names in a folder of /proc.
std::vector<int> numbers_in(const char* path) {
    std::vector<int> numbers;
    const Directory folder(opendir(path));
    for (const dirent* entry = nullptr; folder && (entry = readdir(folder.get())) != nullptr;) {
        if (const auto number = whole_number<int>(entry->d_name)) {
            numbers.push_back(*number);
        }
    }
    return numbers;
}

/// Says which thing this process has done that must wait for the place; empty: nothing.
std::string unfit(int agent) {
    const std::size_t threads = numbers_in("/proc/self/task").size() - 1;
    if (threads > 0) {
        return fmt::format("it starts {} thread{}", threads, threads == 1 ? "" : "s");
    }
    for (const int file : numbers_in("/proc/self/fd")) {
        const std::string what = file <= STDERR_FILENO || file == agent ? "" : held_by(file);
        if (!what.empty()) {
            return "it opens " + what;
        }
    }
    return {};
}

/// The socket of a standby. Any failure on it ends the process.
class Agent {
public:
    explicit Agent(int socket) : socket_(socket), text_(Limits{}.standby_message_bytes_max, '\0') {
        if (fcntl(socket, F_SETFD, FD_CLOEXEC) != 0) {
            _exit(1);
        }
    }

    [[nodiscard]] int socket() const { return socket_.get(); }

    /// Fields of one message.
    void tell(std::initializer_list<std::string_view> fields) const {
        std::string text = fmt::format("{}", fmt::join(fields, std::string_view("\0", 1)));
        text.resize(std::min(text.size(), text_.size()));
        if (send(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL) !=
            static_cast<ssize_t>(text.size())) {
            _exit(1);
        }
    }

    /// An order, questions, and the place with its files. The end of the socket ends the
    /// process: it is not needed any more.
    [[nodiscard]] std::string_view hear() {
        iovec bytes{text_.data(), text_.size()};
        msghdr message{};
        message.msg_iov = &bytes;
        message.msg_iovlen = 1;
        alignas(cmsghdr) std::array<char, CMSG_SPACE(2 * sizeof(int))> control{};
        message.msg_control = control.data();
        message.msg_controllen = control.size();
        ssize_t got = 0;
        do {
            got = recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC);
        } while (got < 0 && errno == EINTR);
        if (got <= 0) {
            _exit(got == 0 ? 0 : 1);
        }
        const cmsghdr* const header = CMSG_FIRSTHDR(&message);
        if (header != nullptr && header->cmsg_type == SCM_RIGHTS &&
            header->cmsg_len == CMSG_LEN(2 * sizeof(int))) {
            std::array<int, 2> files{};
            std::memcpy(files.data(), CMSG_DATA(header), sizeof files);
            out_ = UniqueFd(files[0]);
            err_ = UniqueFd(files[1]);
        }
        return {text_.data(), static_cast<std::size_t>(got)};
    }

    /// The two files that came with the place become stdout and stderr.
    void take_streams() {
        if (dup2(out_.get(), STDOUT_FILENO) < 0 || dup2(err_.get(), STDERR_FILENO) < 0) {
            _exit(1);
        }
        out_.reset();
        err_.reset();
    }

private:
    UniqueFd socket_;
    std::string text_;
    UniqueFd out_;
    UniqueFd err_;
};

/// Ends the process if one of them is not what it was: its worker starts cold, with the new files.
void compare(const Files& before, const Agent& agent) {
    for (const auto& [path, identity] : before) {
        if (identity.empty() || file_identity(path) != identity) {
            agent.tell({standby_word::kUnfit, path, "has changed"});
            _exit(0);
        }
    }
}

/// In the order of a worker that is started with them.
void set_variables(std::string_view place) {
    for (std::size_t at = place.find('\0'); at != std::string_view::npos;) {
        const std::size_t end = place.find('\0', at + 1);
        const std::string entry(place.substr(at + 1, end - at - 1));
        const std::size_t sign = entry.find('=');
        const std::string key = entry.substr(0, sign);
        if (sign == std::string::npos || unsetenv(key.c_str()) != 0 ||
            setenv(key.c_str(), entry.c_str() + sign + 1, 1) != 0) {
            _exit(1);
        }
        at = end;
    }
}

void become_worker(int socket) {
    forget(worker_variable::kStandby);
    Agent agent(socket);
    const std::string killed_as = exchange_oom_score(kKilledFirst);
    agent.tell({standby_word::kHere});
    (void)agent.hear();  // The modules to import: a program has none.
    const std::string_view program = program_invocation_short_name;
    agent.tell({standby_word::kImports, program});
    if (const std::string why = unfit(socket); !why.empty()) {
        agent.tell({standby_word::kUnfit, program, why});
        _exit(0);
    }
    const Files files = mapped_files();
    compare(files, agent);
    const std::string local_rank = variable(worker_variable::kLocalRank);
    ProcessTitle title("ddprun: standby", "ddprun: standby of local rank " + local_rank,
                       "ddprun: standby " + local_rank);
    agent.tell({standby_word::kReady, std::to_string(memory_kib())});
    std::optional<Instant> looked_at;
    std::string_view place;
    do {
        place = agent.hear();
        const Instant now = std::chrono::steady_clock::now();
        if (!looked_at || now - *looked_at > kLookedAt) {
            compare(files, agent);
            looked_at = now;
        }
    } while (place == standby_word::kCheck);
    if (!place.starts_with(standby_word::kPlace) ||
        (!killed_as.empty() && exchange_oom_score(killed_as).empty())) {
        _exit(1);
    }
    title.end();
    agent.take_streams();
    set_variables(place);
    agent.tell({standby_word::kGone});
}

/// If this fails, the agent is not told, and starts no standbys.
void tell_that_it_waits() {
    const UniqueFd pipe(
        open(variable(worker_variable::kImports).c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
    const std::string line = fmt::format("{}{}\n", kWaitsLine, file_identity("/proc/self/exe"));
    (void)!write(pipe.get(), line.data(), line.size());
    forget(worker_variable::kImports);
}

}  // namespace

void wait_for_place(const void* place_in_program) {
    const std::string standby = variable(worker_variable::kStandby);
    const bool is_to_tell = !variable(worker_variable::kImports).empty();
    // A worker leads its session. Its descendants inherit its variables, but are no workers.
    if ((standby.empty() && !is_to_tell) || getsid(0) != getpid() ||
        !is_in_program(place_in_program)) {
        return;
    }
    if (standby.empty()) {
        tell_that_it_waits();
        return;
    }
    const auto socket = whole_number<int>(standby);
    if (!socket) {
        _exit(1);
    }
    become_worker(*socket);
}

}  // namespace ddprun::worker
