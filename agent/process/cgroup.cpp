#include "agent/process/cgroup.hpp"

#include <fcntl.h>
#include <mntent.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "agent/process/fork_into.hpp"
#include "base/os/read_files.hpp"
#include "base/os/read_memory_room.hpp"

namespace ddprun::agent {

namespace {

constexpr std::string_view kNamePrefix = "ddprun-";
// Attempts to make a folder that a concurrent clean-up does not remove before it is locked.
constexpr int kAttempts = 3;
// At most so many cgroups beside ours are checked.
constexpr std::size_t kNeighboursMax = 1024;

UniqueFd open_in(const UniqueFd& folder, const char* name, int how) {
    return UniqueFd(openat(folder.get(), name, how | O_CLOEXEC));
}

UniqueFd open_folder(const std::string& path) {
    return UniqueFd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

std::string path_of(const UniqueFd& folder) {
    std::array<char, PATH_MAX> path{};
    const std::string link = fmt::format("/proc/self/fd/{}", folder.get());
    return readlink(link.c_str(), path.data(), path.size() - 1) > 0 ? path.data() : std::string();
}

/// Returns the mount point of cgroup v2; empty: it is not mounted.
std::string mount_point() {
    const std::unique_ptr<FILE, int (*)(FILE*)> mounts(setmntent("/proc/self/mounts", "re"),
                                                       &endmntent);
    if (!mounts) {
        return {};
    }
    mntent entry{};
    std::array<char, 4096> buffer;
    while (getmntent_r(mounts.get(), &entry, buffer.data(), static_cast<int>(buffer.size()))) {
        if (std::string_view(entry.mnt_type) == "cgroup2") {
            return entry.mnt_dir;
        }
    }
    return {};
}

/// "0::PATH" of /proc/self/cgroup; empty: this process is in none, or in one that is not seen here.
std::string own_path() {
    std::string path = own_cgroup_path();
    return path.starts_with("/..") ? std::string() : path;
}

struct OwnCgroup {
    std::string folder;
    bool is_root = false;  ///< of what is mounted here
};

/// The cgroup of this process.
Result<OwnCgroup> own_cgroup() {
    const std::string mount = mount_point();
    const std::string path = own_path();
    if (mount.empty() || path.empty()) {
        return Error{ErrorCode::NotFound, "no cgroup v2 is mounted here"};
    }
    const bool is_root = path == "/";
    OwnCgroup own{.folder = is_root ? mount : mount + path, .is_root = is_root};
    if (!open_folder(own.folder).is_open()) {
        return system_error(errno, fmt::format("cannot open the cgroup {}", own.folder));
    }
    return own;
}

std::string fresh_name() {
    std::uint32_t number = 0;
    if (getrandom(&number, sizeof number, 0) != static_cast<ssize_t>(sizeof number)) {
        number = static_cast<std::uint32_t>(getpid());
    }
    return fmt::format("{}{:08x}", kNamePrefix, number);
}

bool is_locked_by_us(const UniqueFd& folder) {
    return flock(folder.get(), LOCK_EX | LOCK_NB) == 0;
}

/// It may be forbidden though the folder is ours: delegation has more rules than can be asked for.
Result<void> try_birth(Cgroup& cgroup) {
    const Result<void> begun = cgroup.begin_generation();
    if (begun.has_error()) {
        return begun;
    }
    const pid_t child = fork_into(cgroup.birthplace());
    if (child == 0) {
        _exit(0);
    }
    int status = 0;
    const int failure = child < 0 ? errno : 0;
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR) {}
    cgroup.end_generation();
    if (failure != 0 || !WIFEXITED(status)) {
        return system_error(failure != 0 ? failure : EPERM, "no process can be born in a cgroup");
    }
    return {};
}

std::vector<std::string> names_in(const std::string& folder) {
    std::vector<std::string> names;
    const Directory directory(opendir(folder.c_str()));
    while (directory && names.size() < kNeighboursMax) {
        const dirent* entry = readdir(directory.get());
        if (entry == nullptr) {
            break;
        }
        if (entry->d_type == DT_DIR && entry->d_name[0] != '.') {
            names.emplace_back(entry->d_name);
        }
    }
    return names;
}

/// Cgroups that were made by an agent, of any user.
std::vector<std::string> agents_cgroups_in(const std::string& folder) {
    std::vector<std::string> found;
    for (const std::string& name : names_in(folder)) {
        if (name.starts_with(kNamePrefix)) {
            found.push_back(fmt::format("{}/{}", folder, name));
        }
    }
    return found;
}

/// Waits until no process lives in it, or the end of `patience`.
bool wait_until_empty(const Cgroup& cgroup, Milliseconds patience) {
    const auto end = std::chrono::steady_clock::now() + patience;
    while (!cgroup.is_empty()) {
        const auto left =
            std::chrono::duration_cast<Milliseconds>(end - std::chrono::steady_clock::now());
        if (left <= Milliseconds::zero()) {
            return false;
        }
        pollfd changed{.fd = cgroup.events(), .events = POLLPRI, .revents = 0};
        (void)poll(&changed, 1, static_cast<int>(left.count()));
    }
    return true;
}

}  // namespace

Result<Cgroup> Cgroup::make() {
    const Result<OwnCgroup> parent = own_cgroup();
    if (!parent) {
        return parent.error();
    }
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
        Cgroup cgroup;
        const std::string path = fmt::format("{}/{}", parent->folder, fresh_name());
        if (mkdir(path.c_str(), 0755) != 0) {
            return system_error(errno, fmt::format("cannot make a cgroup in {}", parent->folder));
        }
        cgroup.folder_ = open_folder(path);
        if (!cgroup.folder_.is_open() || !is_locked_by_us(cgroup.folder_)) {
            continue;
        }
        Result<void> opened = cgroup.open_files();
        if (opened.has_value()) {
            opened = try_birth(cgroup);
        }
        if (opened.has_error()) {
            (void)rmdir(path.c_str());
            return opened.error();
        }
        return cgroup;
    }
    return Error{ErrorCode::System,
                 fmt::format("every cgroup made in {} was removed", parent->folder)};
}

Result<std::optional<Cgroup>> Cgroup::make_if_wanted(std::optional<ContainmentLevel> wanted) {
    if (!allows_cgroup(wanted)) {
        return std::optional<Cgroup>();
    }
    Result<Cgroup> made = make();
    if (made.has_error() && wanted == ContainmentLevel::Cgroup) {
        return Error{made.error().code, fmt::format("containment {} cannot be had: {}",
                                                    names_of(*wanted).name, made.error().what)};
    }
    return made.has_error() ? std::optional<Cgroup>() : std::optional<Cgroup>(std::move(*made));
}

Result<Cgroup> Cgroup::from(UniqueFd folder) {
    Cgroup cgroup;
    cgroup.folder_ = std::move(folder);
    const Result<void> opened = cgroup.open_files();
    if (opened.has_error()) {
        return opened.error();
    }
    return cgroup;
}

Result<void> Cgroup::open_files() {
    kill_ = open_in(folder_, "cgroup.kill", O_WRONLY);
    if (kill_.is_open()) {
        events_ = open_in(folder_, "cgroup.events", O_RDONLY);
    }
    if (events_.is_open()) {
        return {};
    }
    const int error = errno;
    // Every cgroup has this file; one that was removed has none.
    if (faccessat(folder_.get(), "cgroup.procs", F_OK, 0) != 0) {
        return Error{ErrorCode::NotFound, "the cgroup of its agent was removed"};
    }
    return system_error(error, "cannot open cgroup.kill (Linux 5.14)");
}

void Cgroup::kill_all() const {
    constexpr char kNow = '1';
    // It fails only for a cgroup that is gone, and then all its processes are.
    const ssize_t written = write(kill_.get(), &kNow, 1);
    static_cast<void>(written);
}

bool Cgroup::is_empty() const {
    const std::string text = read_part(events_.get(), 4096);
    return text.empty() || text.find("populated 0") != std::string::npos;
}

Result<void> Cgroup::begin_generation() {
    const std::string name = fmt::format("{}-{}", getpid(), ++generations_);
    if (mkdirat(folder_.get(), name.c_str(), 0755) == 0) {
        birthplace_ = open_in(folder_, name.c_str(), O_RDONLY | O_DIRECTORY);
    }
    return birthplace_.is_open() ? Result<void>()
                                 : system_error(errno, "cannot make the cgroup of a generation");
}

void Cgroup::end_generation() {
    birthplace_.reset();
    for (const std::string& name : names_in(path_of(folder_))) {
        (void)unlinkat(folder_.get(), name.c_str(), AT_REMOVEDIR);
    }
}

void Cgroup::remove() {
    end_generation();
    (void)rmdir(path_of(folder_).c_str());  // The next agent finds what is left.
}

std::string clear_stale_cgroups(Milliseconds patience) {
    const Result<OwnCgroup> own = own_cgroup();
    if (!own) {
        return {};
    }
    std::vector<std::string> found = agents_cgroups_in(own->folder);
    if (!own->is_root) {
        // Another login, another scope of the service manager: beside ours.
        const std::string parent = own->folder.substr(0, own->folder.rfind('/'));
        for (const std::string& name : names_in(parent)) {
            const std::string beside = parent + "/" + name;
            if (beside != own->folder) {
                const std::vector<std::string> below = agents_cgroups_in(beside);
                found.insert(found.end(), below.begin(), below.end());
            }
        }
    }
    std::string line;
    for (const std::string& path : found) {
        UniqueFd folder = open_folder(path);
        struct stat status {};
        if (!folder.is_open() || fstat(folder.get(), &status) != 0 || status.st_uid != geteuid() ||
            !is_locked_by_us(folder)) {
            continue;
        }
        Result<Cgroup> stale = Cgroup::from(std::move(folder));
        if (!stale) {
            continue;
        }
        if (!stale->is_empty()) {
            stale->kill_all();
            const bool is_gone = wait_until_empty(*stale, patience);
            line += fmt::format("{} {}: {}",
                                line.empty() ? "an earlier ddprun left processes in" : ", in", path,
                                is_gone ? "killed" : "killed, and they are still there");
        }
        stale->remove();
    }
    return line;
}

}  // namespace ddprun::agent
